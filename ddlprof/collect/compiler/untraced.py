"""Keeps torch.compile out of our frames.

After a graph break of the script's, dynamo tries to compile every function that is called from there, ours too: that
would be graph breaks and compilations more than without us. A skipped frame runs as plain Python; where dynamo inlines
a hook into the script's own graph, the hook's `is_compiling()` guard is still what it sees.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ddlprof.torch_private import compile
from ddlprof.torch_private.names import codes

_PACKAGES = ("ddlprof.collect", "ddlprof.operators", "ddlprof.torch_private", "ddlprof.base")
"""All that the training thread may run of ours."""
_NAMED_TUPLE = "namedtuple_"
"""The module that `__new__` of a named tuple says it is from."""


def leave_to_python(torch: Any) -> None:
    """Marks all functions of ours that are loaded."""
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
