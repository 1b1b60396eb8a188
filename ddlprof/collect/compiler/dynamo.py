"""What torch.compile has done and does in this process; never imports its machinery."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ddlprof.collect.install import replace
from ddlprof.collect.process.on_import import around_import
from ddlprof.torch_private import compile


def used_dynamo() -> bool:
    """Whether torch.compile has compiled anything."""
    counters = compile.counters() or {}
    return any(sum(counters[name].values()) for name in ("frames", "stats") if name in counters)


def around_tracing(
    begin: Callable[[], None], end: Callable[[], None], imported: Callable[[bool], None]
) -> Callable[[], None]:
    """Calls `begin` and `end` around each frame that dynamo traces and compiles, in any thread, in pairs that may nest.

    Around its import it calls `begin` and `imported`, which is told whether there will be more calls: another version
    of torch may not let us know. None of them may raise. The result takes it back.
    """
    undo: list[Callable[[], None]] = []
    imported_before = compile.DYNAMO in sys.modules

    def after() -> None:
        if imported_before:
            begin()
        imported(_call_around(begin, end, undo))

    undo.append(around_import(compile.DYNAMO, begin, after))

    def restore() -> None:
        while undo:
            undo.pop()()

    return restore


def _call_around(begin: Callable[[], None], end: Callable[[], None], undo: list[Callable[[], None]]) -> bool:
    """Around what torch.compile, torch.export and ahead-of-time compilation have in common.

    Dynamo's own callbacks are not called for all of them, and `torch._dynamo.reset()` forgets them.
    """
    module = compile.tracing_module()
    if module is None:
        return False
    original = getattr(module, compile.TRACE)

    @functools.wraps(original)
    def transform_code_object(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return original(*args, **kwargs)
        finally:
            end()

    undo.append(replace(module, compile.TRACE, transform_code_object))
    return True
