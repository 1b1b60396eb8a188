"""Runs a script or module as the interpreter would: sys.argv, sys.path[0] and the `__main__` module are its own."""

from __future__ import annotations

import io
import marshal
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any

from ddlprof.launch.marking import functions_of_script, mark_module, marked_code
from ddlprof.launch.target import Target
from ddlprof.model.options import DataCall

_PYC_HEADER_BYTES = 16


def run_as_main(target: Target, data_calls: Sequence[str] = ()) -> None:
    """Runs the target in the interpreter's `__main__` module, which is cleared first. `data_calls`: see Options."""
    calls = functions_of_script(target, data_calls)
    namespace = _cleared_main()
    sys.orig_argv[-len(sys.argv) :] = target.python_words()
    script = os.path.join(os.getcwd(), target.words[0])  # not normalised, as Python does not
    if target.module:
        sys.argv = ["-m", *target.words[1:]]  # runpy puts the file in place of the -m
        if not _safe_path():
            sys.path.insert(0, os.getcwd())
        mark_module(target, calls)
        _runpy(target.words[0], alter_argv=True)
    elif pkgutil.get_importer(script):  # a directory or an archive with a __main__.py
        sys.argv = list(target.words)
        sys.path.insert(0, script)
        mark_module(target, calls)
        _runpy("__main__", alter_argv=False)
    else:
        sys.argv = list(target.words)
        if not _safe_path():
            sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        namespace.update(__file__=script, __loader__=SourceFileLoader("__main__", script))
        exec(_code(script, calls), namespace)


def _cleared_main() -> dict[str, Any]:
    """The namespace of `__main__` as a new interpreter has it: what the bootstrap defined is gone."""
    namespace = sys.modules["__main__"].__dict__
    dunders = {name: value for name, value in namespace.items() if name.startswith("__") and name.endswith("__")}
    del dunders["__file__"]
    namespace.clear()
    namespace.update(dunders, __doc__=None)
    return namespace


def _safe_path() -> bool:
    """Whether `python -P` or `-I` keeps the program's directory off sys.path."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def _runpy(module: str, alter_argv: bool) -> None:
    """Calls what `python -m` itself calls, so that errors and tracebacks are the same; kept stable for that purpose."""
    import runpy

    runpy._run_module_as_main(module, alter_argv)  # type: ignore[attr-defined]


def _code(script: str, calls: Sequence[DataCall]) -> CodeType:
    with io.open_code(script) as file:
        content = file.read()  # once: the script may be a pipe
    if content.startswith(MAGIC_NUMBER):
        code: CodeType = marshal.loads(content[_PYC_HEADER_BYTES:])
        return code
    return marked_code(content, script, calls)
