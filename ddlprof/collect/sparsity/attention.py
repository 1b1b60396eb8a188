"""The projections of nn.MultiheadAttention, which are no modules: it calls `linear` with pieces of its parameters.

While one of them runs, that function is ours; it calls the original.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ddlprof.collect.install import Uninstall, replace

_LINEAR = "linear"


class Projections:
    """Hooks of the attention modules of one counted step."""

    def __init__(self, seen: Callable[[str, Any, Any, Any], None]) -> None:
        """`seen`: is told of each projection, by name, weight, input and output. It may raise."""
        self._seen = seen
        self._undo: Uninstall | None = None

    def hooks(self, name: str, module: Any) -> list[Any]:
        """Hooks of one attention module."""

        def before(module: Any, args: Any) -> None:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled() and self._undo is None:
                self._undo = replace(F, _LINEAR, self._telling(name, module, F.linear))

        def after(module: Any, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self.remove()

        return [module.register_forward_pre_hook(before), module.register_forward_hook(after, always_call=True)]

    def _telling(self, name: str, module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        thread = threading.get_ident()

        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            result = original(input, weight, bias)
            if threading.get_ident() == thread:
                inner = "out_proj" if weight is module.out_proj.weight else "in_proj"
                self._seen(f"{name}.{inner}", weight, input, result)
            return result

        return linear

    def remove(self) -> None:
        """Puts torch's function back."""
        if self._undo is not None:
            self._undo()
            self._undo = None
