"""The line of the script that a job is at before its first step, of the stack of the training thread.

Imports are no work of the line that imports, and neither is the start of the process group, in which ranks wait for
those that import for longer. A wait for other ranks is told as one.
"""

from __future__ import annotations

from ddlprof.collect.process.data_places import Places
from ddlprof.collect.process.frames import StackFrame
from ddlprof.model.source_locations import START, START_ITEMS, START_WAITS, SourceLocation

_IMPORTS = ("importlib", "_frozen_importlib")
_WAITS = "torch.distributed"
"""Modules, and a package of modules, in which the script's line does not work itself."""
_FIRST_WAIT = "init_process_group"
_ITEMS = frozenset(("__getitem__", "__getitems__"))


def start_place(places: Places, stack: list[StackFrame]) -> SourceLocation | None:
    """The innermost line of the user's with the outermost one that led there; None if nothing of the script works.

    It is told if samples of a data set are made there: something goes through the data before the training.
    """
    users = [n for n, frame in enumerate(stack) if places.is_users(frame)]
    inside = stack[: users[0]] if users else stack
    if not users or any(frame.module.startswith(_IMPORTS) or frame.code.co_name == _FIRST_WAIT for frame in inside):
        return None
    inner, outer = stack[users[0]], stack[users[-1]]
    items = any(_is_item(stack[n]) for n in users[:-1]) or any(_is_of_data_set(frame) for frame in stack[: users[-1]])
    caller = places.text(outer) if outer is not inner else ""
    what = START_ITEMS if items else START
    if any(frame.module.startswith(_WAITS) for frame in inside):
        what = START_WAITS
    return SourceLocation(places.text(inner), what, caller)


def _is_item(frame: StackFrame) -> bool:
    return frame.code.co_name in _ITEMS


def _is_of_data_set(frame: StackFrame) -> bool:
    """Whether it is the access to a sample in a data set of a library."""
    return _is_item(frame) and frame.module.startswith(("datasets.", "torch.utils.data", "torchvision.datasets"))
