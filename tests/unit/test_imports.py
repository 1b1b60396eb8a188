"""The architecture as a test: which package may import what, how long files and functions get, how fast help starts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.import_rules import CATALOG, HEAVY, ROOMS, RULES, TORCH_AT_TOP
from tests.unit.sources import ROOT, all_statements, parsed, sources, statements, trees

__all__ = ["trees"]
pytestmark = pytest.mark.usefixtures("trees")

FOLDERS = ("ddlprof", "recommender", "instance_catalog")
STDLIB = frozenset(sys.stdlib_module_names)
MAX_FILE_LINES = 500
"""A guide: a file is one thing, whatever its length. Nothing is joined or split only to stay below it."""
MAX_FUNCTION_LINES = 60


class Import(NamedTuple):
    module: str
    lazy: bool
    line: int


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] not in FOLDERS[1:] else ("ddlprof", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, lazy: bool = False) -> Iterator[Import]:
    """Every import that can run, and whether it waits for a function to be called."""
    for node in statements(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, lazy, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"line {node.lineno}: imports are absolute"
            yield Import(node.module, lazy, node.lineno)
            if node.module == "ddlprof":  # a package (from ddlprof import store) or a name (__version__)
                packages = [alias.name for alias in node.names if f"ddlprof.{alias.name}" in RULES]
                yield from (Import(f"ddlprof.{name}", lazy, node.lineno) for name in packages)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from imports(node, lazy or is_function)


def ruled(module: str) -> str:
    """The package, or the file, whose rule holds for a module."""
    return max((name for name in RULES if within(module, name)), key=len)


def violation(module: str, found: Import) -> str | None:
    """Why `module` must not contain this import; None if it may."""
    package = ruled(module)
    rule = RULES[package]
    if within(found.module, ROOMS) and module.split(".")[:3] != found.module.split(".")[:3]:
        return f"{module} must not import {found.module}, which may be taken out"
    top = found.module.partition(".")[0]
    if top == "ddlprof":
        allowed = (*rule.ours, *(rule.lazily_ours if found.lazy else ()))
        target = ruled(found.module)
        inside = target == package != "ddlprof"
        version = found.module == "ddlprof" and within(module, "ddlprof")  # from ddlprof import __version__
        # In a room, what has a rule of its own is no part of what lies around it.
        names = [target] if within(found.module, ROOMS) else [name for name in allowed if within(found.module, name)]
        if inside or version or set(names) & set(allowed):
            return None
        return f"{package} must not import {found.module}{'' if found.lazy else ' at module level'}"
    if top in STDLIB:
        return None
    if not rule.third_party:
        return f"{package} is standard library only, not {top}"
    if top in rule.forbidden:
        return f"{package} must not import {top}"
    if top == "torch" and not found.lazy and not any(within(module, name) for name in TORCH_AT_TOP):
        return f"{package} imports torch inside functions only"
    if (package == "ddlprof" or package.endswith(".cli")) and not found.lazy and top in HEAVY - {"typer"}:
        return f"{package} imports {top} inside functions only"
    return None


def test_imports_point_one_way() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{found.line}: {reason}"
        for path in sources(*FOLDERS)
        for found in imports(parsed(path))
        if (reason := violation(module_name(path), found))
    ] == []


@pytest.mark.parametrize(
    ("module", "code", "allowed"),
    [
        ("ddlprof.model.run", "import json\nfrom ddlprof.model.records import StepRow", True),
        ("ddlprof.model.run", "import numpy", False),
        ("ddlprof.model.run", "import ddlprof.store", False),
        ("ddlprof.collect.recorder", "def f():\n    import torch", True),
        ("ddlprof.collect.recorder", "try:\n    import torch\nexcept ImportError:\n    pass", False),
        ("ddlprof.collect.recorder", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", True),
        ("ddlprof.collect.loader.dataloader", "import torch", True),
        ("ddlprof.collect.loader.dataloader", "def f():\n    import pandas", False),
        ("ddlprof.collect.loader.dataloader", "from ddlprof.analysis import steady", False),
        ("ddlprof.launch", "from ddlprof.collect import session", False),
        ("ddlprof.launch", "def f():\n    from ddlprof.collect import session", True),
        ("ddlprof.report.run.text", "def f():\n    import torch", False),
        ("ddlprof.cli.app", "import pandas", False),
        ("ddlprof.cli.report", "def f():\n    from ddlprof import report", True),
        ("ddlprof.cli.report", "from ddlprof import report", False),
        ("ddlprof", "import ddlprof.api", False),
        ("ddlprof.recommender.predictor", "import ddlprof.store", False),
        ("ddlprof.recommender.predictor", "from ddlprof.instance_catalog import load", True),
        (CATALOG, "from ddlprof import recommender", False),
        ("ddlprof.cli.report", "def f():\n    from ddlprof.extensions.cluster import jobs", False),
        ("ddlprof.cli.report", "from ddlprof.registry import Extension", True),
        ("ddlprof.extensions.cluster.cli.elastic", "def f():\n    from ddlprof.extensions.hetero import search", False),
        ("ddlprof.extensions.cluster.cli.elastic", "def f():\n    from ddlprof.extensions.cluster import jobs", True),
        ("ddlprof.extensions.cluster.cli.elastic", "from ddlprof.extensions.cluster import jobs", False),
        ("ddlprof.extensions.cluster.jobs", "def f():\n    from ddlprof.extensions.cluster.report import csv", False),
        ("ddlprof.extensions.cluster.report.csv", "from ddlprof.extensions.cluster.jobs import Job", True),
        ("ddlprof.extensions.cluster.extension", "from ddlprof.extensions.cluster.jobs import Job", False),
        ("ddlprof.instance_catalog.errors", "from ddlprof.base.errors import DdlprofError", True),
        ("ddlprof.instance_catalog.errors", "from ddlprof.model.records import StepRow", False),
    ],
)
def test_the_rules_can_tell(module: str, code: str, allowed: bool) -> None:
    reasons = [violation(module, found) for found in imports(ast.parse(code))]
    assert (set(reasons) == {None}) is allowed


def test_the_mode_that_counts_operators_is_for_models_that_nobody_trains() -> None:
    """It stands in the path of every operator, and some fail for it."""
    allowed = {
        "ddlprof.operators.trace_recorder": (
            "ddlprof.operators.trace_step",
            "ddlprof.operators.trace_cuda",
        ),
        "ddlprof.operators.trace_step": ("ddlprof.operators.model_alone", "ddlprof.planning.features"),
        "ddlprof.operators.model_alone": ("ddlprof.operators.named_models", "ddlprof.planning.features"),
    }
    for path in sources("ddlprof"):
        for imported in imports(parsed(path)):
            assert module_name(path) in allowed.get(imported.module, (module_name(path),))


def rooms(folder: Path) -> Iterator[Path]:
    """`folder` and the folders in it that hold modules."""
    yield from (each for each in sorted({path.parent for path in folder.rglob("*.py")}) if each.name != "startup")


def arrows(folder: Path) -> dict[str, set[str]]:
    """What the rooms and files of `folder` import of each other, also inside functions, by the names of their doors."""
    package = module_name(folder / "__init__.py")
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        inside = path.relative_to(folder)
        here = inside.parts[0].removesuffix(".py")
        names = set()
        for node in all_statements(parsed(path)):  # for types only, too
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        doors = {name.removeprefix(package + ".").partition(".")[0] for name in names if within(name, package)}
        known = {door for door in doors if (folder / door).is_dir() or (folder / f"{door}.py").exists()}
        found.setdefault(here, set()).update(known - {here})
    return found


def circle(found: dict[str, set[str]]) -> list[str]:
    """Names that lead back to themselves, in no order; empty if none does."""
    left = dict(found)
    while ends := {name for name, to in left.items() if not to & left.keys()}:
        left = {name: to for name, to in left.items() if name not in ends}
    return sorted(left)


def test_no_rooms_and_no_files_of_a_room_import_each_other_in_a_circle() -> None:
    folders = [room for name in (*FOLDERS, "scripts") for room in rooms(ROOT / name)]
    circles = {str(folder.relative_to(ROOT)): circle(arrows(folder)) for folder in folders}
    assert {folder: names for folder, names in circles.items() if names} == {}
    assert len(folders) > 40


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def too_long(path: Path) -> Iterator[str]:
    """A file, and the functions in it, with their lines."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines >= MAX_FILE_LINES:
        yield f"{path.relative_to(ROOT)}: {lines} lines"
    for node in all_statements(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines >= MAX_FUNCTION_LINES:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"


def test_files_and_functions_are_short() -> None:
    assert [text for path in sources(*FOLDERS, "scripts", "examples", "tests") for text in too_long(path)] == []


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["-m", "ddlprof", "--help"], HEAVY - {"typer"}),
        (["-m", "ddlprof", "report", "--help"], HEAVY - {"typer"}),
        (["-c", "import ddlprof"], HEAVY),
        (["-c", "import ddlprof.launch, ddlprof.model.codec"], HEAVY),
    ],
    ids=["help", "report --help", "import ddlprof", "import ddlprof.launch"],
)
def test_starts_light(arguments: list[str], absent: frozenset[str]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "ddlprof" in imported
    assert not imported & absent
