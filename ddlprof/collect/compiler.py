"""Tells when torch.compile works in this process, and keeps it away from our functions; never imports it."""

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

    Around dynamo's import it calls `begin` and `imported`. `imported` gets False if no more calls will come, because
    this version of torch cannot be hooked. None of the three may raise. Returns a function that undoes all this.
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
    """Wraps the function by which torch.compile, torch.export and ahead-of-time compilation trace; False without it.

    Dynamo's own callbacks are not called for all of these, and `torch._dynamo.reset()` removes them.
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
    """Keeps torch.compile out of our frames: marks all loaded functions of ours as skipped.

    After a graph break of the script's, dynamo tries to compile every function that is called from there, including
    ours, which would add graph breaks and compilations. A skipped frame runs as plain Python. Where dynamo inlines a
    hook into the script's own graph, it still sees the hook's `is_compiling()` guard.
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
