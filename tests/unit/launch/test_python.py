"""Command lines that begin with `python`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddlprof.launch.target import Target, from_command, python_command


@pytest.mark.parametrize(
    ("words", "options", "target"),
    [
        (["train.py", "-m", "x"], [], Target(["train.py", "-m", "x"])),
        (["-u", "-X", "dev", "-Werror", "train.py"], ["-u", "-X", "dev", "-Werror"], Target(["train.py"])),
        (["-O", "-m", "package.train", "-c"], ["-O"], Target(["package.train", "-c"], module=True)),
    ],
)
def test_script_and_options_are_told_apart(words: list[str], options: list[str], target: Target) -> None:
    command = from_command(words)
    assert command
    assert (command.options, command.target) == (options, target)


@pytest.mark.parametrize("words", [["-c", "pass"], ["--version"], ["-"], [], ["-u"], ["-m"]])
def test_no_script_and_no_module(words: list[str]) -> None:
    assert from_command(words) is None


def test_another_python_is_not_ours(tmp_path: Path) -> None:
    """One file, but another virtual environment."""
    other = tmp_path / "python"
    other.symlink_to(Path(sys.executable).resolve())
    assert python_command([sys.executable, "train.py"])
    assert python_command([str(other), "train.py"]) is None
    assert python_command(["train.py", "train.py"]) is None
