"""What is taken for a launcher, and what is said where it trained nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.launch import command
from ddlprof.model.options import JOB_VARIABLE, PATH_VARIABLE, STARTUP, AddedHooks, Options, ParentRun

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX commands")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"bin{os.pathsep}{os.environ['PATH']}")
    texts = {
        "bin/launch": "#!/bin/sh\n", "start.sh": "#!/bin/sh\n", "train": "#!/usr/bin/env python\n", "plain": "pass\n",
        "sh": "pass\n", "train.py": "#!/bin/sh\n", "package/__main__.py": "",
    }  # fmt: skip
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "launch").mkdir()  # a folder of a launcher's name


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("launch", True), ("bin/launch", True), ("./start.sh", True), ("/bin/sh", True), ("./train", False),
        ("./plain", False), ("sh", False), ("train.py", False), ("package", False), ("no-such-command", False),
        ("gone.py", False),
    ],
)  # fmt: skip
def test_what_is_a_command(word: str, expected: bool) -> None:
    assert command.is_command([word, "x"]) is expected


@pytest.fixture
def kept_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process keeps its own handlers."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("kept_signals")
def test_how_it_ends(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.run_command(["sh", "-c", "kill -TERM $$"], Options(quiet=True)) == 128 + signal.SIGTERM
    assert command.run_command(["sh", "-c", "exit 5"], None) == 5
    assert capfd.readouterr().err == ""
    with pytest.raises(UserError, match=r"cannot run \./gone"):
        command.run_command(["./gone"], None)


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize(("launcher", "says"), [("mpiexec", "-x with Open MPI"), ("launch", "torchrun ... -m ddlprof")])
def test_it_names_the_launcher_and_the_form(launcher: str, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("bin/mpiexec").symlink_to("launch")
    assert command.run_command([launcher, "python", "some/job.py"], Options()) == 0
    [line] = capfd.readouterr().err.splitlines()
    assert says in line
    assert not any(Path("ddlprof-runs").iterdir())


def test_a_job_travels_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, os.pathsep.join([STARTUP, "theirs"]))
    job = ParentRun(Options(stop_after=3), "train", "id", "/runs/a", AddedHooks("more", "theirs", {"steps": 5}), 17)
    for variables in (job.environment(), ParentRun(Options()).environment()):
        assert variables[PATH_VARIABLE] == os.pathsep.join([STARTUP, "theirs"])  # once, however often it is handed on
    monkeypatch.setenv(JOB_VARIABLE, job.environment()[JOB_VARIABLE])
    assert ParentRun.from_environment() == job
    monkeypatch.delenv(JOB_VARIABLE)
    assert ParentRun.from_environment() is None
