"""Times the writing of checkpoints by `torch.save`, torch.distributed.checkpoint and safetensors; part of `other`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.process.on_import import after_imports
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

LATER = {
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that write checkpoints, by the module that has them; hooked once the script has imported it."""
_SAVER = "torch.distributed.checkpoint.state_dict_saver"
"""The module that defines these functions of torch.distributed.checkpoint, so it has each of them a second time."""


class _Saves:
    """Wraps functions that write checkpoints; such functions called inside one are part of the outer call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._writing = False

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if self._writing or not self._recorder.emit(Kind.CHECKPOINT_BEGIN):
                return original(*args, **kwargs)
            self._writing = True
            self._recorder.saves_to = next((value for value in args if isinstance(value, (str, os.PathLike))), None)
            try:
                return original(*args, **kwargs)
            finally:
                self._writing = False
                self._recorder.emit(Kind.CHECKPOINT_END)

        return save

    def replaced(self, names: tuple[str, ...], *owners: Any) -> list[Uninstall]:
        """Replaces each function by one wrapper, in all `owners` that have it; returns what undoes that."""
        undo = []
        for name in names:
            original = getattr(owners[0], name, None)
            if original is not None:
                ours = self.timed(original)
                undo += [replace(owner, name, ours) for owner in owners if vars(owner).get(name) is original]
        return undo


def install(context: HookContext) -> Uninstall:
    """Hooks both names of `torch.save` now, and the other functions as soon as the script has imported them."""
    torch, saves = context.torch, _Saves(context.recorder)
    undo = saves.replaced(("save",), torch, torch.serialization)

    def imported(module: str) -> None:
        try:
            owners = [sys.modules[module], *filter(None, [sys.modules.get(_SAVER)])]
            undo.extend(saves.replaced(LATER[module], *owners))
        except Exception as error:  # fail open: it would be an error of the script's import
            context.recorder.note("checkpoint", f"{module} is not timed: {type(error).__name__}: {error}")

    undo.append(after_imports({module: [functools.partial(imported, module)] for module in LATER}))
    return lambda: all_of(*undo)()
