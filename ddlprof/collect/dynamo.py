"""What torch.compile has done and does in this process; never imports its machinery."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ddlprof.collect.on_import import around_import


def used_dynamo() -> bool:
    """Whether torch.compile has compiled anything."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return any(sum(counters[name].values()) for name in ("frames", "stats") if name in counters)


def compilations() -> int:
    """Graphs that torch.compile has compiled so far."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters else 0


def around_tracing(
    begin: Callable[[], None], end: Callable[[], None], end_of_import: Callable[[], None]
) -> Callable[[], None]:
    """Calls `begin` and `end` around each frame that dynamo traces and compiles, in any thread, and around its import.

    None of them may raise. Pairs of calls may nest; where dynamo does not let us know, nothing ends. The result takes
    it back.
    """
    undo: list[Callable[[], None]] = []
    imported_before = "torch._dynamo" in sys.modules

    def imported() -> None:
        if imported_before:
            begin()
        if _call_around(begin, end, undo):
            end_of_import()

    undo.append(around_import("torch._dynamo", begin, imported))

    def restore() -> None:
        while undo:
            undo.pop()()

    return restore


def _call_around(begin: Callable[[], None], end: Callable[[], None], undo: list[Callable[[], None]]) -> bool:
    """Around what torch.compile, torch.export and ahead-of-time compilation have in common.

    Dynamo's own callbacks are not called for all of them, and `torch._dynamo.reset()` forgets them.
    """
    module: Any = sys.modules.get("torch._dynamo.convert_frame")
    original = getattr(module, "transform_code_object", None)
    if original is None:  # another version of torch
        return False

    @functools.wraps(original)
    def transform_code_object(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return original(*args, **kwargs)
        finally:
            end()

    module.transform_code_object = transform_code_object

    def restore() -> None:
        if module.transform_code_object is transform_code_object:
            module.transform_code_object = original

    undo.append(restore)
    return True
