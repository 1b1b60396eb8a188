"""What is run, and what is said of a script that cannot be run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.launch.target import BOOTSTRAP, LaunchTarget, become, from_command, interpreter_options, python_command
from ddlprof.model.options import OPTIONS_VARIABLE, Options


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (LaunchTarget(["some/train.py", "--lr", "1"]), "train"),
        (LaunchTarget(["train"]), "train"),
        (LaunchTarget(["some/folder/"]), "folder"),
        (LaunchTarget(["package.train", "x"], module=True), "package.train"),
    ],
)
def test_name_of_the_job(target: LaunchTarget, name: str) -> None:
    assert target.name == name


@pytest.mark.parametrize(
    "target", [LaunchTarget(["train.py", "-m", "x"]), LaunchTarget(["package.train", "-x"], module=True)]
)
def test_words_for_python_can_be_read_back(target: LaunchTarget) -> None:
    assert LaunchTarget.from_python_words(target.python_words()) == target
    assert target.profiled_words() == [BOOTSTRAP, *target.python_words()]


def test_bootstrap_is_a_file() -> None:
    assert os.path.isfile(BOOTSTRAP)


def test_check_accepts_what_python_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "__main__.py").touch()
    LaunchTarget([str(tmp_path / "train.py")]).check()
    LaunchTarget([str(tmp_path)]).check()
    LaunchTarget(["no.such.module"], module=True).check()


def test_check_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot open gone\.py: no such file"):
        LaunchTarget(["gone.py"]).check()
    with pytest.raises(UserError, match=r"a directory without a __main__\.py"):
        LaunchTarget([str(tmp_path)]).check()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_check_names_an_unreadable_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch(mode=0)
    with pytest.raises(UserError, match="permission denied"):
        LaunchTarget([str(script)]).check()


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
    become(LaunchTarget(["train.py", "--lr", "1"]), Options(stop_after=3))
    assert command == [sys.executable, "-u", BOOTSTRAP, "train.py", "--lr", "1"]
    assert Options.from_environment() == Options(stop_after=3)


def test_become_without_options_is_plain_python(command: list[str]) -> None:
    become(LaunchTarget(["package.train", "x"], module=True), None)
    assert command == [sys.executable, "-u", "-m", "package.train", "x"]
    assert os.environ[OPTIONS_VARIABLE] == ""


@pytest.mark.parametrize(
    ("words", "options", "target"),
    [
        (["train.py", "-m", "x"], [], LaunchTarget(["train.py", "-m", "x"])),
        (["-u", "-X", "dev", "-Werror", "train.py"], ["-u", "-X", "dev", "-Werror"], LaunchTarget(["train.py"])),
        (["-O", "-m", "package.train", "-c"], ["-O"], LaunchTarget(["package.train", "-c"], module=True)),
    ],
)
def test_script_and_options_are_told_apart(words: list[str], options: list[str], target: LaunchTarget) -> None:
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
