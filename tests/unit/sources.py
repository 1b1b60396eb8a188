"""The source files of the repository as syntax trees, for the tests that look at all of them."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The file, which several tests look at; they use `trees`."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@pytest.fixture(scope="module")
def trees() -> Iterator[None]:
    """A million objects, through which the garbage collector would go while they are made. Gone after the module."""
    was_on = gc.isenabled()
    gc.disable()
    yield
    parsed.cache_clear()
    if was_on:
        gc.enable()


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements in a file or statement, and what holds some of them: no expression has any."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, name, ())


def all_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Those in others, too."""
    for node in statements(tree):
        yield node
        yield from all_statements(node)
