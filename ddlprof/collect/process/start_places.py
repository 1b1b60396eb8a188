"""The line of the script that a job is at before its first step, of the stack of the training thread.

Imports are no work of the line that imports, and ranks that wait for one another are none at all.
"""

from __future__ import annotations

from ddlprof.collect.process.data_places import Places
from ddlprof.collect.process.frames import StackFrame
from ddlprof.model.source_locations import START, START_ITEMS, SourceLocation

_NO_WORK = ("importlib", "_frozen_importlib", "torch.distributed")
"""Modules, and packages of modules, in which the script's line does not work itself."""
_ITEMS = frozenset(("__getitem__", "__getitems__"))


def start_place(places: Places, stack: list[StackFrame]) -> SourceLocation | None:
    """The innermost line of the user's with the outermost one that led there; None if nothing of the script works.

    It is told if samples of a data set are made there: something goes through the data before the training.
    """
    users = [n for n, frame in enumerate(stack) if places.is_users(frame)]
    if not users or any(frame.module.startswith(_NO_WORK) for frame in stack[: users[0]]):
        return None
    inner, outer = stack[users[0]], stack[users[-1]]
    items = any(_is_item(stack[n]) for n in users[:-1]) or any(_is_of_data_set(frame) for frame in stack[: users[-1]])
    caller = places.text(outer) if outer is not inner else ""
    return SourceLocation(places.text(inner), START_ITEMS if items else START, caller)


def _is_item(frame: StackFrame) -> bool:
    return frame.code.co_name in _ITEMS


def _is_of_data_set(frame: StackFrame) -> bool:
    """Whether it is the access to a sample in a data set of a library."""
    return _is_item(frame) and frame.module.startswith(("datasets.", "torch.utils.data", "torchvision.datasets"))
