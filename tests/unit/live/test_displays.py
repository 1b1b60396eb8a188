"""The lines below what a script prints: nothing of the script's is lost, moved or mixed up."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.live import displays as pinned
from ddlprof.live.displays import Pinned
from ddlprof.live.loop import has_terminal
from ddlprof.live.snapshot import Snapshot
from tests.unit.live.terminal import Terminal

STATUS = ["ddlprof  one", "two", "three"]


def draw(terminal: Terminal, resized: bool = False) -> None:
    terminal.feed(pinned.drawn(STATUS, terminal.height, resized))


def release(terminal: Terminal) -> None:
    terminal.feed(pinned.released(pinned.ROWS, terminal.height))


def test_the_script_scrolls_above() -> None:
    terminal = Terminal()
    for number in range(40):
        terminal.feed(f"line {number}\n")
        if number % 7 == 3:
            draw(terminal)
            assert [row.rstrip() for row in terminal.rows[-3:]] == STATUS
    assert [row.rstrip() for row in terminal.rows[-3:]] == STATUS
    release(terminal)
    assert terminal.seen == [f"line {number}" for number in range(40)]
    assert (terminal.top, terminal.bottom) == (0, terminal.height - 1)


output = st.lists(
    st.one_of(
        st.text("ab", min_size=1, max_size=30),
        st.just("\n"),
        st.text("ab", max_size=20).map(lambda text: "\r" + text),
        st.just(None),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(output)
def test_what_was_printed_is_what_a_terminal_without_us_would_have_seen(pieces: list[str | None]) -> None:
    """`None` is an update of the status."""
    ours, plain = Terminal(), Terminal(height=16 - pinned.ROWS)
    for piece in pieces:
        if piece is None:
            draw(ours)
        else:
            ours.feed(piece)
            plain.feed(piece)
    release(ours)
    assert ours.seen == plain.seen


def test_a_terminal_that_the_script_has_reset_heals() -> None:
    terminal = Terminal()
    draw(terminal)
    terminal.feed("\x1b[r\x1b[16;1Hat the bottom")
    draw(terminal)
    assert [row.rstrip() for row in terminal.rows[-3:]] == STATUS
    assert terminal.rows[-4].rstrip() == "at the bottom"
    terminal.feed(" and on")
    assert terminal.rows[-4].rstrip() == "at the bottom and on"


def test_the_status_always_has_as_many_lines() -> None:
    name = "x" * 500 + "\x1b[31m\nb"
    for snapshot in (Snapshot("train"), Snapshot(name, notes=[name]), Snapshot(name, steps=5, world_size=3)):
        for width in (40, 79, 300):
            lines = pinned.lines_of(snapshot, width)
            assert len(lines) == pinned.ROWS
            assert all(len(line) <= width and line.isprintable() for line in lines)


def test_a_small_terminal_is_left_alone() -> None:
    assert pinned.fits(80, 24)
    assert not pinned.fits(80, 8)
    assert not pinned.fits(20, 24)


def test_the_terminal_is_the_training_s_unless_the_shell_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = "7 (a (b) c) S 1 {group} {group} 34816 {foreground} 0"
    for group, foreground, expected in ((7, 7, True), (7, 5, False), (7, -1, True)):
        text = stat.format(group=group, foreground=foreground)
        monkeypatch.setattr("ddlprof.live.loop.Path.read_text", lambda path, errors, text=text: text)
        assert has_terminal(7) is expected
    monkeypatch.undo()
    assert has_terminal(2**22 + 1)  # not known


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_rows_are_given_back_where_they_may_not_be_drawn() -> None:
    import fcntl
    import pty
    import struct
    import termios

    main, there = pty.openpty()
    may_draw = [True]
    try:
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 16, 60, 0, 0))
        shown, terminal = Pinned(there, lambda: may_draw[0]), Terminal()
        shown.show(Snapshot("train"))
        terminal.feed(os.read(main, 9999).decode())
        assert "waiting for the first step" in terminal.rows[-3]
        may_draw[0] = False
        shown.show(Snapshot("train"))
        shown.show(Snapshot("train"))
        terminal.feed(os.read(main, 9999).decode())
        assert terminal.seen == []
        assert terminal.bottom == 15
        may_draw[0] = True
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 60, 0, 0))
        shown.show(Snapshot("train"))
        os.set_blocking(main, False)
        with pytest.raises(BlockingIOError):  # too small: nothing is written
            os.read(main, 9999)
    finally:
        os.close(main)
        os.close(there)
