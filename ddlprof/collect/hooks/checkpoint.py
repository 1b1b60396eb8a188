"""Times the writing of checkpoints by `torch.save`, torch.distributed.checkpoint and safetensors; part of `other`.

It also notes which files these functions write, and which are read before the first step, so that it is known from
where a job went on.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks.checkpoint_names import Loads, where
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.left_behind import Left
from ddlprof.collect.process.on_import import after_imports
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

LATER = {
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions that write checkpoints, by the module that has them; hooked once the script has imported it."""
READERS = {"torch.distributed.checkpoint": ("load",), "safetensors.torch": ("load_file", "load_model")}
"""Functions that read them, in the same modules."""
_DEFINED_IN = tuple(f"torch.distributed.checkpoint.state_dict_{what}" for what in ("saver", "loader"))
"""The modules that define the functions of torch.distributed.checkpoint, so they have each of them a second time."""
_POSITIONS = {"load": 0, "load_file": 0}
"""Where the path is among the arguments; elsewhere it is the second one."""


class _Saves:
    """Wraps functions that write checkpoints; such functions called inside one are part of the outer call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._writing = self._reading = False
        self._left = Left(recorder)
        self._loads = Loads(recorder)

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if self._writing and not self._left.behind(sys._getframe()):
                return original(*args, **kwargs)
            begun, written = True, None
            try:
                begun = self._recorder.emit(Kind.CHECKPOINT_BEGIN)
                if not begun:
                    return original(*args, **kwargs)
                self._writing = True
                self._recorder.saves_to = _path_among(args)
                result = original(*args, **kwargs)
                written = self._where(args, kwargs)
                return result
            finally:
                if begun:
                    self._writing = False
                    self._recorder.emit(Kind.CHECKPOINT_END, written)

        self._left.add(save)
        return save

    def _where(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
        try:
            return where(args, kwargs, 1)
        except Exception as error:  # fail open: the checkpoint is written
            self._recorder.note("checkpoint", f"a file is not known: {type(error).__name__}: {error}")
            return None

    def noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that reads, with a note of what it read before the first step; reads inside it are part of it."""
        position = _POSITIONS.get(original.__name__, 1)

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            if self._reading:
                return original(*args, **kwargs)
            try:
                self._reading = True
                content = original(*args, **kwargs)
            finally:
                self._reading = False
            try:
                self._loads.note(args, kwargs, position, content)
            except Exception as error:  # fail open: the script has what it asked for
                self._recorder.note("checkpoint", f"a file is not known: {type(error).__name__}: {error}")
            return content

        return load

    def replaced(self, names: tuple[str, ...], *owners: Any, reads: bool = False) -> list[Uninstall]:
        """Replaces each function by one wrapper, in all `owners` that have it; returns what undoes that."""
        undo = []
        for name in names:
            original = getattr(owners[0], name, None)
            if original is not None:
                ours = self.noted(original) if reads else self.timed(original)
                undo += [replace(owner, name, ours) for owner in owners if vars(owner).get(name) is original]
        return undo


def _path_among(args: tuple[Any, ...]) -> str | bytes | None:
    """The first path among the arguments, as text: the object is the script's."""
    try:
        return next((os.fspath(value) for value in args if isinstance(value, (str, os.PathLike))), None)
    except Exception:  # whatever the script's class does
        return None


def install(context: HookContext) -> Uninstall:
    """Hooks both names of `torch.save` and `torch.load` now, other functions once the script has imported them."""
    torch, saves = context.torch, _Saves(context.recorder)
    undo = saves.replaced(("save",), torch, torch.serialization)
    undo += saves.replaced(("load",), torch, torch.serialization, reads=True)

    def imported(module: str) -> None:
        try:
            owners = [sys.modules[module], *filter(None, map(sys.modules.get, _DEFINED_IN))]
            undo.extend(saves.replaced(LATER[module], *owners))
            undo.extend(saves.replaced(READERS[module], *owners, reads=True))
        except Exception as error:  # fail open: it would be an error of the script's import
            context.recorder.note("checkpoint", f"{module} is not timed: {type(error).__name__}: {error}")

    undo.append(after_imports({module: [functools.partial(imported, module)] for module in LATER}))
    return lambda: all_of(*undo)()
