"""A tensor class and a mode of a script's own, which note when anybody asks them: ddlprof must not."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

asked: list[Any] = []
"""The functions that they were asked for; to be cleared first."""


class AskedTensor(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class AskedMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked.append(func)
        return func(*args, **(kwargs or {}))
