"""The command line of the process that takes over."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddlprof.launch.target import BOOTSTRAP, Target, become, interpreter_options
from ddlprof.model.options import OPTIONS_VARIABLE, Options

RUN = ["run", "train.py"]


@pytest.mark.parametrize(
    ("python_words", "kept"),
    [
        (["/bin/ddlprof"], []),
        (["-u", "/bin/ddlprof"], ["-u"]),
        (["-m", "ddlprof"], []),
        (["-mddlprof"], []),
        (["-u", "-m", "ddlprof"], ["-u"]),
        (["-um", "ddlprof"], ["-u"]),
        (["-X", "dev", "-W", "error", "-m", "ddlprof"], ["-X", "dev", "-W", "error"]),
    ],
)
def test_interpreter_options_are_kept(python_words: list[str], kept: list[str]) -> None:
    assert interpreter_options(["python", *python_words, *RUN], ["/path/of/ddlprof", *RUN]) == kept


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What would be executed; filled by `become`."""
    executed: list[str] = []
    monkeypatch.setattr(os, "execv", lambda path, words: executed.extend(words))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "/bin/ddlprof", *RUN])
    monkeypatch.setattr(sys, "argv", ["/bin/ddlprof", *RUN])
    monkeypatch.setenv(OPTIONS_VARIABLE, "")  # so that it is restored
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return executed


def test_become_runs_the_bootstrap_with_the_options_in_the_environment(command: list[str]) -> None:
    become(Target(["train.py", "--lr", "1"]), Options(stop_after=3))
    assert command == [sys.executable, "-u", BOOTSTRAP, "train.py", "--lr", "1"]
    assert Options.from_environment() == Options(stop_after=3)


def test_become_without_options_is_plain_python(command: list[str]) -> None:
    become(Target(["package.train", "x"], module=True), None)
    assert command == [sys.executable, "-u", "-m", "package.train", "x"]
    assert os.environ[OPTIONS_VARIABLE] == ""
