"""What the host reads of tensors in the first steps: it tells models that act or are evaluated from teachers.

The methods are tensors' own again when the first steps are over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks.shadows import Shadow, Shadows, away_while_tracing
from ddlprof.collect.install import Uninstall, quietly
from ddlprof.collect.recorder import FIRST_STEPS
from ddlprof.collect.surroundings import Surroundings
from ddlprof.collect.torch_private.engine import unheard

_METHODS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")


class _Heard(Shadow):
    """Tells of the object that the method is taken of, and gives the original: its warnings name the caller's line."""

    __slots__ = ("_bind",)

    def __init__(self, original: Callable[..., Any], look: Callable[[Any], None]) -> None:
        super().__init__(original, look)
        self._bind = self._original.__get__

    def __get__(self, this: Any, kind: Any = None) -> Any:
        if this is None:
            return self._original
        self._timed(this)
        return self._bind(this)


def install(around: Surroundings) -> Uninstall:
    """Tells `FrozenForwards` of numbers that the host asks of tensors; truth values are mostly checks of arguments."""
    torch, recorder, shadows = around.torch, around.recorder, Shadows()
    frozen = around.modules.frozen

    def look(this: Any) -> None:
        if threading.get_ident() != recorder.thread:
            return
        if recorder.boundaries > FIRST_STEPS:
            around.later(shadows.take)
            return
        with unheard(torch):
            if this.dtype is not torch.bool:
                frozen.reads(this.dim(), this.is_floating_point())

    look = quietly(look, recorder)

    for name in _METHODS:
        shadows.add(torch.Tensor, name, _Heard(getattr(torch.Tensor, name), look))
    return away_while_tracing(around, shadows)
