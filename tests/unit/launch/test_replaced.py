"""What is done before a script replaces its own process; here `os.execv` only notes that it was called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.base.real_process import getpid
from ddlprof.launch.replaced import watch_exec


class Became(Exception):
    """In place of what never returns."""


class FakeSession:
    def __init__(self, steps: int = 3, pid: int | None = None) -> None:
        self.pid = getpid() if pid is None else pid
        self.progress = SimpleNamespace(steps=steps)
        self.rank = 0
        self.directory = Path("run")
        self.finished: list[tuple[str, int, bool]] = []
        self.error: Exception | None = None

    def finish(self, status: str, exit_code: int, replaced: bool) -> None:
        self.finished.append((status, exit_code, replaced))
        if self.error is not None:
            raise self.error


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The programs that the process would be now."""
    found: list[tuple[Any, ...]] = []

    def become(path: Any, *words: Any) -> None:
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        found.append((path, *words))
        raise Became

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr(os, "execve", become)
    return found


def test_what_was_measured_is_written_first(became: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = FakeSession()
    watch_exec(session, quiet=False)
    with pytest.raises(Became):
        os.execv(sys.executable, ["python", "again.py"])
    assert session.finished == [("ok", 0, True)]
    assert became == [(sys.executable, ["python", "again.py"])]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "its steps so far: ddlprof report" in said


@pytest.mark.parametrize("form", ["execl", "execlp", "execvpe"])
def test_other_forms(form: str, became: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(["/nowhere", os.path.dirname(sys.executable)]))
    session: Any = FakeSession()
    watch_exec(session, quiet=True)
    name = sys.executable if form == "execl" else os.path.basename(sys.executable)
    words: list[Any] = [[name, "x"], dict(os.environ)] if form == "execvpe" else [name, "x"]
    with pytest.raises(Became):
        getattr(os, form)(name, *words)
    assert len(became) == 1
    assert session.finished == [("ok", 0, True)]


def test_a_program_that_does_not_exist_ends_nothing(became: list[Any]) -> None:
    session: Any = FakeSession()
    watch_exec(session, quiet=False)
    for form in (os.execv, os.execvp):
        with pytest.raises(FileNotFoundError):
            form("no-such-program", ["x"])
    assert not session.finished
    assert not became


def test_an_error_of_ours_does_not_keep_it(became: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = FakeSession()
    session.error = ValueError("broken")
    watch_exec(session, quiet=False)
    with pytest.raises(Became):
        os.execv(sys.executable, ["x"])
    assert became
    assert "ValueError: broken" in capsys.readouterr().err


def test_without_a_step_nothing_is_said(became: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = FakeSession(steps=0)
    watch_exec(session, quiet=False)
    with pytest.raises(Became):
        os.execv(sys.executable, ["x"])
    assert became
    assert capsys.readouterr().err == ""
