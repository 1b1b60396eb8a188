"""Shell completion: asked for as a shell asks, and installed where a shell looks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def completions(line: str) -> list[str]:
    """What bash offers when the tabulator key is pressed at the end of the line."""
    environment = {
        "_DDLPROF_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ddlprof"], env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ddlprof rec", ["recommend"]),
        ("ddlprof run --nproc", ["--nproc-per-node"]),
        ("ddlprof doctor --format ", ["table", "json"]),
        ("ddlprof instances r", ["refresh"]),
    ],
)
def test_a_shell_is_offered_commands_options_and_choices(line: str, offered: list[str]) -> None:
    assert completions(line) == offered


def test_it_is_installed_for_the_shell_that_asks(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    # `; exit $?` keeps bash there: it would be replaced by a single command, and nobody could be asked
    command = [bash, "--norc", "-c", '"$0" -m ddlprof --install-completion; exit $?', sys.executable]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    script = next(path for path in tmp_path.rglob("*") if path.is_file() and "_DDLPROF_COMPLETE" in path.read_text())
    assert str(script) in (tmp_path / ".bashrc").read_text()
