"""Ends the script, by SystemExit, after so many steps. For the experiments of `ddlprof characterize` only."""

from __future__ import annotations

import weakref
from typing import Any

from ddlprof.collect.install import Uninstall, removal
from ddlprof.collect.recorder import Recorder


def install(recorder: Recorder, steps: int) -> Uninstall:
    """Counts the updates of each optimizer: the first to have made `steps` ends the script.

    All ranks count the same updates, so they end at the same one. To be installed after the optimizer's hook.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    updates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    boundaries = 0

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal boundaries
        # A nested step (a subclass that calls its base) ends before the one around it and is no boundary.
        if torch.compiler.is_compiling() or recorder.boundaries == boundaries:
            return
        boundaries = recorder.boundaries
        updates[optimizer] = updates.get(optimizer, 0) + 1
        if updates[optimizer] >= steps:
            raise SystemExit(0)

    return removal(register_optimizer_step_post_hook(after))
