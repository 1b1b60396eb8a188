"""How far long work is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import re
import sys
import time

import pytest

from ddlprof.cli import screen


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with screen.progress("simulating") as advance:
        now_s += 600  # before it begins
        for done in range(0, 2001, 100):
            now_s += 4
            advance(done, 2000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["ddlprof: simulating: 40 %, about 48 s left", "ddlprof: simulating: 80 %, about 16 s left"]


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("simulating", at_once=True) as advance:
        for done in range(20):
            advance(done, 20)
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_the_time_left_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch)
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with screen.progress("reading") as advance:
        advance(1, 2)
    assert capsys.readouterr().err == ""
    with screen.progress("reading") as advance:
        now_s += 90
        advance(1, 4)
        now_s += 20
    shown = capsys.readouterr().err
    assert "ddlprof: reading" in shown
    assert " 25% 4.17 min left" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # gone at the end


def test_what_nobody_advances_has_the_time_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch)
    with screen.progress("counting", at_once=True):
        pass
    assert re.search("ddlprof: counting .* 0 s so far", capsys.readouterr().err)
