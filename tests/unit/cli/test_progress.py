"""How far simulations are, where nobody sees a bar."""

from __future__ import annotations

import time

import pytest

from ddlprof.cli import screen


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with screen.simulating() as advance:
        for done in range(0, 2001, 100):
            now_s += 4
            advance(done, 2000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["ddlprof: simulated 700 of 2,000 jobs", "ddlprof: simulated 1,500 of 2,000 jobs"]


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.simulating() as advance:
        for done in range(20):
            advance(done, 20)
    assert capsys.readouterr().err == ""
