"""The displays of a snapshot: the whole screen, single lines, or a few lines below the output of the script.

For the latter the terminal is told to scroll only the rows above (DECSTBM), as package managers do for their progress.
Whatever the script prints, carriage returns and cursor movements of its progress bars included, stays as it would be on
a terminal with fewer rows. Each update is one write, leaves the cursor where it was, and sets everything up anew, so
that a terminal that was resized or reset heals.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from ddlprof.base.text import plain
from ddlprof.live import words
from ddlprof.live.screen import render
from ddlprof.live.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 3
LEAST_HEIGHT, LEAST_WIDTH = 12, 40
"""The smallest terminal that the lines are shown on."""

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_WHOLE = "\x1b[r"
_DOWN = "\x1bD"
_ERASE, _BELOW = "\x1b[2K", "\x1b[J"


class Lines:
    """Writes one plain line for each snapshot."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, snapshot: Snapshot) -> None:
        """Writes the line. Raises OSError where the reader has gone."""
        self._stream.write(words.line(snapshot, datetime.now()) + "\n")
        self._stream.flush()


class Screen:
    """The whole terminal, on its second screen where it has one: what was there before comes back at the end."""

    def __init__(self, console: Console, hint: str) -> None:
        from rich.live import Live

        self._console = console
        self._hint = hint
        self._last: Snapshot | None = None
        # Nothing else writes here, and stdout may be a pipe.
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._last is not None and self._last.started:
            self._console.print(render(self._last, *self._console.size))

    def show(self, snapshot: Snapshot) -> None:
        """Draws the view anew, for the size that the terminal has now."""
        self._last = snapshot
        self._live.update(render(snapshot, *self._console.size, self._hint), refresh=True)


class Pinned:
    """A few lines at the bottom of the terminal behind a descriptor, to which the script writes, too."""

    def __init__(self, descriptor: int, may_draw: Callable[[], bool] = lambda: True) -> None:
        self._descriptor = descriptor
        self._may_draw = may_draw
        self._size: tuple[int, int] | None = None
        """The size of the terminal when the lines were drawn; None: they are not there."""

    def show(self, snapshot: Snapshot) -> None:
        """Draws the lines, unless the terminal is too small or belongs to another job. Raises OSError if it is gone."""
        width, height = os.get_terminal_size(self._descriptor)
        if not fits(width, height) or not self._may_draw():
            self.release()
            return
        resized = self._size not in (None, (width, height))
        self._size = width, height
        self._write(drawn(lines_of(snapshot, width - 1), height, resized))

    def release(self) -> None:
        """Gives the whole terminal back to the script."""
        if self._size is not None:
            self._size = None
            self._write(released(ROWS, os.get_terminal_size(self._descriptor).lines))

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode(errors="replace"))  # one write: nobody else's comes in between


def lines_of(snapshot: Snapshot, width: int) -> list[str]:
    """The status in `ROWS` lines of at most `width` characters."""
    text = plain(f"ddlprof  {'; '.join(words.status(snapshot))}")
    lines = textwrap.wrap(text, width, subsequent_indent=" " * 9, max_lines=ROWS, placeholder=" ...")
    return lines + [""] * (ROWS - len(lines))


def fits(width: int, height: int) -> bool:
    """Whether the terminal has room for the lines and for the script."""
    return height >= LEAST_HEIGHT and width >= LEAST_WIDTH


def drawn(lines: list[str], height: int, resized: bool = False) -> str:
    """The characters that draw the lines at the bottom of a terminal of `height` rows.

    Where it was `resized`, earlier lines are somewhere below the cursor.
    """
    room = f"{_SAVE}{_WHOLE}{_RESTORE}{_DOWN * len(lines)}\x1b[{len(lines)}A"  # scrolls if the cursor is at the bottom
    first = height - len(lines) + 1
    rows = "".join(f"\x1b[{first + number};1H{_ERASE}{line}" for number, line in enumerate(lines))
    return f"{room}{_BELOW if resized else ''}{_SAVE}\x1b[1;{first - 1}r\x1b[m{rows}{_RESTORE}"


def released(rows: int, height: int) -> str:
    """The characters that remove the lines and reset the terminal."""
    first = height - rows + 1
    erased = "".join(f"\x1b[{first + number};1H{_ERASE}" for number in range(rows))
    return f"{_SAVE}{_WHOLE}{erased}{_RESTORE}"
