"""torch.compile: what it does in this process, and keeping out of its way; never imports its machinery."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from ddlprof.collect.install import replace
from ddlprof.collect.process.on_import import around_import
from ddlprof.torch_private import compile
from ddlprof.torch_private.names import codes

_PACKAGES = ("ddlprof.collect", "ddlprof.operators", "ddlprof.torch_private", "ddlprof.base")
"""Our packages that the training thread may run."""
_NAMED_TUPLE = "namedtuple_"
"""The module that `__new__` of a named tuple says it is from."""


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


def leave_to_python(torch: Any) -> None:
    """Keeps torch.compile out of our frames: marks all functions of ours that are loaded.

    After a graph break of the script's, dynamo tries to compile every function that is called from there, ours too:
    that would be graph breaks and compilations more than without us. A skipped frame runs as plain Python; where dynamo
    inlines a hook into the script's own graph, the hook's `is_compiling()` guard is still what it sees.
    """
    skip_code = compile.skip_code(torch)
    if skip_code is None:  # another version of torch: some graph breaks more, nothing worse
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES):
            for function in _functions(vars(module)):
                for code in codes(function.__code__):
                    skip_code(code)


def _functions(namespace: Any) -> Iterator[FunctionType]:
    for value in list(namespace.values()):
        if isinstance(value, (property, staticmethod, classmethod)):
            value = value.fget if isinstance(value, property) else value.__func__
        if isinstance(value, FunctionType) and value.__module__.startswith((*_PACKAGES, _NAMED_TUPLE)):
            yield value
            yield from _functions({"wrapped": getattr(value, "__wrapped__", None)})
        elif isinstance(value, type) and value.__module__.startswith(_PACKAGES):
            yield from _functions(vars(value))
