"""`ddlprof watch RUN --hang`: a card, and an exit code of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.cli import app
from ddlprof.importing.writing import write_states
from ddlprof.live import hang
from tests.unit.store.test_hangs import state


def watched(run: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["ddlprof", "watch", str(run), "--hang"])
    return app.main()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers in these tests."""
    monkeypatch.setattr(hang, "_ANSWER_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_hang_ends_with_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_states([state(0), state(1)], "job", tmp_path / "run")
    assert watched(tmp_path / "run", monkeypatch) == 4
    assert capsys.readouterr().out.startswith("HANG: ranks 0, 1 stand still at train.py:0 main\n")


@pytest.mark.usefixtures("impatient")
def test_a_run_that_goes_on_ends_with_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_states([replace(state(0), resumed=True), replace(state(1), stands=False)], "job", tmp_path / "run")
    assert watched(tmp_path / "run", monkeypatch) == 0
    assert capsys.readouterr().out == "no rank says that it stands still\n"


def test_ranks_are_asked_and_need_not_answer(tmp_path: Path) -> None:
    write_states([state(0), state(1)], "job", tmp_path / "run")
    waits: list[float] = []

    def answers(seconds: float) -> None:
        waits.append(seconds)
        for rank in (0, 1):
            now_ns = (tmp_path / "run" / "attempt-0" / "hang.asked").stat().st_mtime_ns
            replace(state(rank), unix_ns=now_ns + 10**9, resumed=True).write(tmp_path / "run" / "attempt-0")

    assert hang.look(str(tmp_path / "run"), answers) is None
    assert len(waits) == 1
