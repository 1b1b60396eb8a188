"""The card at the end of a run, in surroundings that the script has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddlprof.launch.card import await_ranks, print_card


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command))
    return started


def test_a_card(started: list[object], tmp_path: Path) -> None:
    print_card(tmp_path, str(tmp_path))
    assert len(started) == 1


@pytest.mark.parametrize("name", ["stderr", "__stderr__"])
def test_no_error_without_stderr(
    name: str, started: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a card: where stderr was closed from the start, its number may be a file of the script's."""
    monkeypatch.setattr(f"sys.{name}", None)
    print_card(tmp_path, str(tmp_path))
    assert not started


def test_whatever_the_script_did_to_subprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no processes")

    monkeypatch.setattr(subprocess, "run", refuse)
    print_card(tmp_path, str(tmp_path))


def test_ranks_that_never_end_are_not_waited_for_where_time_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 7.0)
    await_ranks(tmp_path, 2, patience_s=0.2)
