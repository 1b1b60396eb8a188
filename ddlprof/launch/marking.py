"""Marks functions of the script as data calls: decorates them in its syntax tree, when it is compiled.

They are thus timed from their definition on, whoever keeps a reference to them. Lines, names, docstrings and globals of
the script stay as they are. Only scripts with `--data-call __main__:NAME` come here.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from ddlprof.launch.target import Target
from ddlprof.model.options import MAIN, DataCall

_DECORATOR = "__import__('ddlprof.collect.loader.data_calls', fromlist=['marked']).marked({name!r})"
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def functions_of_script(target: Target, data_calls: Sequence[str]) -> list[DataCall]:
    """The functions that are in the target itself, by one of its names."""
    names = {MAIN, target.name, *([f"{target.name}.{MAIN}"] if target.module else [])}
    return [call for call in map(DataCall.parse, data_calls) if call.module in names]


def marked_code(source: str | bytes, file: str, calls: Collection[DataCall]) -> CodeType:
    """The source compiled, with these functions marked."""
    if calls:
        try:
            tree: Any = compile(source, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            if _mark(tree, {call.function: str(call) for call in calls}):
                code: CodeType = compile(tree, file, "exec", dont_inherit=True)
                return code
        except (SyntaxError, ValueError, RecursionError):
            pass  # as Python tells it, below
    return compile(source, file, "exec", dont_inherit=True)


def _mark(tree: ast.AST, names: dict[str, str]) -> bool:
    found = False
    for path, node in _definitions(tree):
        if path in names and not isinstance(node, ast.ClassDef):
            node.decorator_list.insert(0, _decorator(names[path], at=(node.decorator_list or [node])[0]))
            found = True
    return found


def _definitions(node: ast.AST, path: str = "") -> Iterator[tuple[str, Any]]:
    """All definitions below a node, with their names in the form of `ddlprof.model.options`."""
    for child in ast.iter_child_nodes(node):
        inner = path
        if isinstance(child, _Definition):
            inner = f"{path}.{child.name}" if path else child.name
            yield inner, child
        yield from _definitions(child, inner)


def _decorator(name: str, at: ast.AST) -> ast.expr:
    """The decorator, in the first line of the function with its decorators: that is where its source begins."""
    expression = ast.parse(_DECORATOR.format(name=name), mode="eval").body
    for node in ast.walk(expression):
        if hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return expression


def mark_module(target: Target, calls: Collection[DataCall]) -> None:
    """Marks the functions of a target that runpy is going to find and compile."""
    if calls:
        names = (target.words[0], f"{target.words[0]}.{MAIN}") if target.module else (MAIN,)
        sys.meta_path.insert(0, _Finder(names, calls))


class _Finder:  # no base from importlib.abc, which imports tempfile and more in every run
    """Gives the loader of the main module another `get_code`, once."""

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
            return spec  # a package: its __main__ is what is run
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
