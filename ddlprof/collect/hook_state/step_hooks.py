"""Hooks of all optimizers, which go away whenever they are asked to: also while torch is calling them.

torch goes through a dictionary of hooks during a step. If one is removed then and another one follows, the training
ends with "OrderedDict mutated during iteration".
"""

from __future__ import annotations

import sys
from typing import Any

from ddlprof.collect.install import Uninstall

_left: list[Any] = []
"""Handles of hooks that do nothing any more and wait to be removed."""


def removal(*handles: Any) -> Uninstall:
    """Removes hooks, or during a step puts others in their place that do nothing, until `sweep`."""
    sweep()

    def uninstall() -> None:
        for handle in handles:
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks[handle.id] = _nothing
        _left.extend(handles)
        sweep()

    return uninstall


def sweep() -> None:
    """Removes the hooks that do nothing, unless a step is under way."""
    if _left and not _is_in_step():
        while _left:
            _left.pop().remove()


def _nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
    """In place of a hook."""


def _is_in_step() -> bool:
    """Whether any thread is inside torch's code around steps."""
    for frame in sys._current_frames().values():
        inner: Any = frame
        while inner is not None:
            if inner.f_globals.get("__name__") == "torch.optim.optimizer":
                return True
            inner = inner.f_back
    return False
