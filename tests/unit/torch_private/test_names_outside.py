"""No file but those of `ddlprof.torch_private` spells a private name of torch."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlprof.torch_private.check import NAMES

ROOT = Path(__file__).resolve().parents[3]
MEET_TORCH = ("ddlprof/collect", "ddlprof/operators", "ddlprof/launch", "ddlprof/cli", "ddlprof/api.py")
"""Other packages may not import torch (`tests/unit/test_imports.py`), nor meet its objects."""
ANYBODYS = frozenset({"wait", "counters", "unbox"})
"""Names in the tables that many other things have, too."""
TORCHS = frozenset(name.attribute for name in NAMES) - ANYBODYS
NAMED_TUPLES = frozenset({"_asdict", "_fields", "_make", "_replace"})
OTHERS = frozenset(
    {
        "_is_gil_enabled",  # of sys
        "_store", "_num_graphs",  # of torch_geometric
        "grain._src.python.data_loader", "grain._src.python.dataset.dataset",
        "_NumpyIterator.__next__",  # of TensorFlow
        "_ub_communicators",  # of Transformer Engine
        "_RealGetContents",  # of zipfile
        "_terminate_pool",  # of multiprocessing
        "_gib",  # of our columns
        "_core.c",  # our own core
        "_frozen_importlib",  # of Python
    }
)  # fmt: skip
PRIVATE = re.compile(r"_[A-Za-z]\w*(?<!__)")
PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
IN_TEXT = re.compile(r"\btorch(data)?(\.[A-Za-z]\w*)*\._[A-Za-z]")


def is_private(name: str) -> bool:
    return bool(PRIVATE.fullmatch(name)) and not name.startswith("_ddlprof_")


def own_names(tree: ast.AST) -> set[str]:
    """Private names that are defined in a file: functions, classes, variables, attributes of `self` and slots."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found |= set(ast.literal_eval(node.value))
    return found


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def silent_texts(tree: ast.AST) -> set[int]:
    """Texts that are statements, which nobody reads while the program runs, and parts of other texts."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} | {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }


def offences(text: str) -> Iterator[str]:
    """Private names of torch in the source of a file, each with its line."""
    tree = ast.parse(text)
    own, silent = own_names(tree), silent_texts(tree)
    for node in ast.walk(tree):
        for name in names_in(node, own, silent):
            yield f"line {getattr(node, 'lineno', 0)}: {name}"


def names_in(node: ast.AST, own: set[str], silent: set[int]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if IN_TEXT.search(alias.name))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("torch", "torchdata"):
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (path for path in paths if IN_TEXT.search(path) or path.rpartition(".")[2] in TORCHS)
    elif isinstance(node, ast.Attribute) and not belongs_to_us(node, own):
        yield node.attr
    elif isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0] if node.values else None, ast.Constant):
        if re.match(r"_[a-z]+_$", str(first.value)):
            yield str(first.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
        value = node.value
        parts = value.split(".") if PATH.fullmatch(value) else []
        private = any(is_private(part) for part in parts) and parts[-1] not in own
        if value not in OTHERS | NAMED_TUPLES and (private or IN_TEXT.search(value) or value in TORCHS):
            yield value


def belongs_to_us(node: ast.Attribute, own: set[str]) -> bool:
    """Whether an attribute is our own, or one of Python's."""
    name = node.attr
    if isinstance(node.value, ast.Name) and node.value.id in sys.stdlib_module_names:
        return True
    if name in TORCHS and not is_own(node.value):
        return isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.value.id in OUR_MODULES
    return not is_private(name) or name in own or name in NAMED_TUPLES


OUR_MODULES = frozenset({"compile"})
"""Whose functions are named like what they return."""

FILES = sorted(
    file
    for place in MEET_TORCH
    for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    if "torch_private" not in file.parts
)


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 80


def test_no_private_name_of_torch_outside() -> None:
    assert [
        f"{path.relative_to(ROOT)}, {offence}"
        for path in FILES
        for offence in offences(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    "code",
    [
        "torch._C._current_graph_task_id()",
        "iterator._dataset_fetcher.fetch",
        "if iterator._num_workers: pass",
        'getattr(node, "_saved_self", None)',
        'getattr(node, f"_saved_{name}")',
        'replace(DataLoader, "_get_iterator", f)',
        'module.__dict__["_compiled_call_impl"]',
        'sys.modules.get("torch._dynamo.utils")',
        'after_import("torch._dynamo.eval_frame", f)',
        "from torch.utils._pytree import tree_leaves",
        "from torch.utils.data import _DatasetKind",
        "import torch._dynamo",
        "class Own(_Base):\n    def f(self):\n        return self._sampler_iter",
        'find(torch, "_C._autograd")',
        "context.enter_exit_hooks.append(f)",
        "def _version(x): ...\nparameter._version",
        'note("comm", "not seen: torch.distributed._symmetric_memory")',
    ],
)
def test_one_is_found(code: str) -> None:
    assert list(offences(code))


@pytest.mark.parametrize(
    "code",
    [
        "class Own:\n    def f(self, other):\n        self._mine = 1\n        return other._mine",
        "sys._getframe(1)",
        "row._replace(step=1)",
        'def f():\n    """What `torch._dynamo` does."""',
        "torch.__version__",
        "work.wait()",
    ],
)
def test_what_is_ours_or_pythons_is_not(code: str) -> None:
    assert list(offences(code)) == []
