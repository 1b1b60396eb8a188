"""Runs a script or module as the interpreter would, with its own sys.argv, sys.path[0] and `__main__` module.

Functions named by `--data-call __main__:NAME` get a decorator in the script's syntax tree before it is compiled. They
are thus timed from their definition on, whoever keeps a reference to them. Line numbers, names, docstrings and globals
of the script do not change.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import marshal
import os
import pkgutil
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType
from typing import Any

from ddlprof.launch.target import LaunchTarget
from ddlprof.model.options import MAIN, DataCall

_PYC_HEADER_BYTES = 16


def run_as_main(target: LaunchTarget, data_calls: Sequence[str] = ()) -> None:
    """Runs the target in the interpreter's `__main__` module, which is cleared first. `data_calls`: see `Options`."""
    calls = functions_of_script(target, data_calls)
    namespace = _cleared_main()
    sys.orig_argv[-len(sys.argv) :] = target.python_words()
    script = os.path.join(os.getcwd(), target.words[0])  # not normalised, as Python does not do it either
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
    """The namespace of `__main__` as in a new interpreter, without what the bootstrap has defined."""
    namespace = sys.modules["__main__"].__dict__
    dunders = {name: value for name, value in namespace.items() if name.startswith("__") and name.endswith("__")}
    del dunders["__file__"]
    namespace.clear()
    namespace.update(dunders, __doc__=None)
    return namespace


def _safe_path() -> bool:
    """Whether `python -P` or `-I` keeps the program's directory out of sys.path."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def _runpy(module: str, alter_argv: bool) -> None:
    """Calls the function of runpy behind `python -m`, so that errors and tracebacks are the same."""
    import runpy

    runpy._run_module_as_main(module, alter_argv)  # type: ignore[attr-defined]


def _code(script: str, calls: Sequence[DataCall]) -> CodeType:
    with io.open_code(script) as file:
        content = file.read()  # read once: the script may be a pipe
    if content.startswith(MAGIC_NUMBER):
        code: CodeType = marshal.loads(content[_PYC_HEADER_BYTES:])
        return code
    return marked_code(content, script, calls)


_DECORATOR = "__import__('ddlprof.collect.loader.data_calls', fromlist=['marked']).marked({name!r})"
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def functions_of_script(target: LaunchTarget, data_calls: Sequence[str]) -> list[DataCall]:
    """The functions of the data calls that are defined in the target itself."""
    names = {MAIN, target.name, *([f"{target.name}.{MAIN}"] if target.module else [])}
    return [call for call in map(DataCall.parse, data_calls) if call.module in names]


def marked_code(source: str | bytes, file: str, calls: Collection[DataCall]) -> CodeType:
    """Compiles the source, with a decorator on each of these functions."""
    if calls:
        try:
            tree: Any = compile(source, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            if _mark(tree, {call.function: str(call) for call in calls}):
                code: CodeType = compile(tree, file, "exec", dont_inherit=True)
                return code
        except (SyntaxError, ValueError, RecursionError):
            pass  # Python itself reports it, below
    return compile(source, file, "exec", dont_inherit=True)


def _mark(tree: ast.AST, names: dict[str, str]) -> bool:
    found = False
    for path, node in _definitions(tree):
        if path in names and not isinstance(node, ast.ClassDef):
            node.decorator_list.insert(0, _decorator(names[path], at=(node.decorator_list or [node])[0]))
            found = True
    return found


def _definitions(node: ast.AST, path: str = "") -> Iterator[tuple[str, Any]]:
    """All definitions below a node, with their names as `ddlprof.model.options` writes them."""
    for child in ast.iter_child_nodes(node):
        inner = path
        if isinstance(child, _Definition):
            inner = f"{path}.{child.name}" if path else child.name
            yield inner, child
        yield from _definitions(child, inner)


def _decorator(name: str, at: ast.AST) -> ast.expr:
    """The decorator.

    It is put at the first line of the function and its decorators, where the function's source begins.
    """
    expression = ast.parse(_DECORATOR.format(name=name), mode="eval").body
    for node in ast.walk(expression):
        if hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return expression


def mark_module(target: LaunchTarget, calls: Collection[DataCall]) -> None:
    """Marks functions of a module that runpy will find and compile."""
    if calls:
        names = (target.words[0], f"{target.words[0]}.{MAIN}") if target.module else (MAIN,)
        sys.meta_path.insert(0, _Finder(names, calls))


class _Finder:  # no base from importlib.abc, which imports tempfile and more in every run
    """Replaces `get_code` of the main module's loader, once."""

    def __init__(self, names: Collection[str], calls: Collection[DataCall]) -> None:
        self._names = names
        self._calls = calls
        self._searching = False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._names or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.submodule_search_locations is not None or not hasattr(spec.loader, "get_source"):
            return spec  # a package: its __main__ is run
        sys.meta_path.remove(self)
        loader: Any = _Loader(spec, self._calls)
        spec.loader = loader
        return spec


class _Loader:
    """The module's own loader, except for `get_code`."""

    def __init__(self, spec: ModuleSpec, calls: Collection[DataCall]) -> None:
        self._spec = spec
        self._loader: Any = spec.loader
        self._calls = calls

    def get_code(self, name: str) -> CodeType | None:
        self._spec.loader = self._loader
        source, file = self._loader.get_source(name), self._loader.get_filename(name)
        return self._loader.get_code(name) if source is None else marked_code(source, file, self._calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
