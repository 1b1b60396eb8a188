"""Extensions of other packages, found by their entry points, and short names of modules that lie in rooms."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.registry import rooms

ROOT = Path(__file__).resolve().parents[2]
THEIRS = """
from ddlprof.registry import Command, Extension

def hello(name: str) -> None:
    "Greet somebody."
    print("hello", name)

EXTENSION = Extension(
    "Theirs",
    {"hello": Command("Greet somebody.", ["hello you"], "hello"), "report": Command("Not ours.", ["report"], "hello")},
)
"""
IMPORTS = re.compile(r"^(?:from (ddlprof[\w.]*) import [\w, ]+|import (ddlprof[\w.]*))$", re.M)
SHORT = (
    "ddlprof.cluster",
    "ddlprof.fusion",
    "ddlprof.hetero",
    "ddlprof.integrations",
    "ddlprof.nn",
    "ddlprof.planning.learning",
    "ddlprof.recommender.learning",
)

Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    """Runs python with two installed packages: one adds a command, the other cannot be imported."""
    (tmp_path / "hello.py").write_text(THEIRS)
    for name, leads_to in (("theirs", "hello:EXTENSION"), ("broken", "nowhere:EXTENSION"), ("wrong", "hello:hello")):
        installed = tmp_path / f"{name}-1.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (installed / "entry_points.txt").write_text(f"[ddlprof.extensions]\n{name} = {leads_to}\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        command = [sys.executable, *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_another_package_adds_a_command(typed: Typed) -> None:
    done = typed("-m", "ddlprof", "hello", "you")
    assert (done.returncode, done.stdout) == (0, "hello you\n"), done.stderr
    assert typed("-m", "ddlprof", "hello", "--help").stdout.splitlines()[-1] == "    ddlprof hello you"


def test_what_is_broken_costs_a_line(typed: Typed) -> None:
    done = typed("-m", "ddlprof", "--help")
    assert done.returncode == 0
    titles = re.findall(r"^(\w[\w ]*):$", done.stdout, re.M)
    assert titles[-2:] == ["Theirs", "Help"]
    assert sorted(done.stderr.splitlines()) == [
        "ddlprof: another command report is left out: hello",
        "ddlprof: the extension broken is left out: ModuleNotFoundError: No module named 'nowhere'",
        "ddlprof: the extension wrong is left out: TypeError: hello:hello is no Extension",
    ]


@pytest.mark.parametrize("words", [["run", "none.py"], ["report", "none"], ["doctor", "--help"]])
def test_a_command_of_ours_asks_no_other_package(words: list[str], typed: Typed) -> None:
    done = typed("-X", "importtime", "-m", "ddlprof", *words)
    assert "left out" not in done.stderr
    assert "hello" not in done.stderr


def test_short_names_are_the_same_modules_in_a_training_too() -> None:
    names = {short: name for room in rooms() for short, name in room.names.items()}
    inner = {"ddlprof.cluster.policy": "ddlprof.extensions.cluster.policy"} if "ddlprof.cluster" in names else {}
    lines = ["import importlib, ddlprof.collect.session"] + [
        f"assert importlib.import_module({short!r}) is importlib.import_module({name!r})"
        for short, name in (names | inner).items()
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, check=True)


def test_names_that_no_room_has_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"ddlprof\.nothing"):
        __import__("ddlprof.nothing")


@pytest.mark.slow
def test_the_imports_of_the_docs_run() -> None:
    """Those of the short names among them; a page of a room that was taken out stays."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    lines = {match[0]: match[1] or match[2] for page in pages for match in IMPORTS.finditer(page)}
    assert len(lines) > 8
    gone = tuple({*SHORT} - {short for room in rooms() for short in room.names})
    there = [line for line, module in lines.items() if not module.startswith(gone)]
    subprocess.run([sys.executable, "-c", "\n".join(there)], cwd=ROOT, check=True)
