"""Each room can be taken out: a copy of the tree without it, its tests and its line of the table is whole.

Left out with it are scripts that import it, and tests of these. What a page of the docs says of a room stays there.
The quick test makes no copy: to its process the room is not there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from ddlprof.cli.commands import commands
from ddlprof.registry import EXTENSIONS
from tests.integration.processes import Processes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 1800
WITHOUT = """
import importlib, pkgutil, sys
from importlib.abc import MetaPathFinder
import ddlprof.registry

ROOM = "ddlprof.extensions." + sys.argv[1]

class Gone(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == ROOM or name.startswith(ROOM + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
ddlprof.registry.EXTENSIONS = tuple(each for each in ddlprof.registry.EXTENSIONS if each != sys.argv[1])
names = [each.name for each in pkgutil.walk_packages(ddlprof.__path__, "ddlprof.") if each.name != ROOM]
for name in names:
    if name not in ("ddlprof.__main__", "ddlprof.launch.bootstrap"):
        importlib.import_module(name)
sys.stderr.write(str(len(names)))
sys.argv[1:] = ["--help"]
sys.exit(importlib.import_module("ddlprof.cli.app").main())
"""
_IMPORTED = re.compile(r"^\s*(?:from|import) ([\w.]+)(?: import \(?([\w, ]+))?", re.M)

Python = Callable[..., subprocess.CompletedProcess[str]]


def imported(text: str) -> set[str]:
    """The modules that a file names in its imports."""
    found = set()
    for module, names in _IMPORTED.findall(text):
        found |= {module, *(f"{module}.{name.strip().partition(' ')[0]}" for name in names.split(","))}
    return found


def without(room: str) -> list[str]:
    """The files of the tree that stay."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tree = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    taken = (f"ddlprof/extensions/{room}/", f"tests/extensions/{room}/")
    left = {path for path in tree if not path.startswith(taken) and (ROOT / path).exists()}
    named = {path: imported((ROOT / path).read_text(encoding="utf-8")) for path in left if path.endswith(".py")}
    gone = {f"ddlprof.extensions.{room}"}
    while True:
        scripts = {name for name in gone if name.startswith("scripts.")}
        more = {
            path
            for path, names in named.items()
            if path in left
            and path.startswith(("scripts/", "tests/"))
            and any(_is_in(name, gone if path.startswith("scripts/") else scripts) for name in names)
        }
        if not more:
            return sorted(left)
        left -= more
        gone |= {path.removesuffix(".py").replace("/", ".") for path in more}


def _is_in(name: str, gone: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in gone)


@pytest.fixture(scope="module", params=EXTENSIONS)
def room(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def copy(room: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree without the room."""
    if not (ROOT / ".git").exists():
        pytest.skip("git tells which files are of the tree")
    folder = tmp_path_factory.mktemp(room)
    for path in without(room):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)
    for core in (ROOT / "ddlprof/collect").glob("_core*.so"):
        shutil.copy2(core, folder / "ddlprof/collect")
    table = folder / "ddlprof/registry.py"
    text = table.read_text(encoding="utf-8")
    assert text.count(f'    "{room}",\n') == 1
    table.write_text(text.replace(f'    "{room}",\n', ""), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def python(copy: Path) -> Python:
    """Runs `python WORDS` in the copy; it has to end well."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words], cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, check=False,
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def listed(text: str) -> set[str]:
    return set(re.findall(r"^  ([a-z]+)  ", text, re.M))


def test_all_imports_and_the_list_of_commands(room: str, processes: Processes) -> None:
    own = set(import_module(f"ddlprof.extensions.{room}.extension").EXTENSION.commands)
    done = processes.run(sys.executable, "-c", WITHOUT, room, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr) > 500
    assert listed(done.stdout) == set(commands()) - own


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(PATIENCE_S)
def test_the_types_are_right(python: Python, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With one cache for all rooms."""
    python("-m", "mypy", "--cache-dir", str(tmp_path_factory.getbasetemp() / "mypy"))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(PATIENCE_S)
def test_the_architecture_is_kept(python: Python) -> None:
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_imports.py")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(PATIENCE_S)
def test_the_rest_of_the_short_suite(python: Python) -> None:
    """But for the tests of the docs, which describe all rooms."""
    python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly",
        "--ignore=tests/unit/test_docs.py", "--ignore=tests/unit/scripts/docs",
        "--ignore=tests/extensions/test_taken_out.py",
    )  # fmt: skip
