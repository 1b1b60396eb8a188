"""Where a snapshot is shown: the whole screen, single lines, or a few lines below what the script prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from ddlprof.live import pinned, words
from ddlprof.live.screen import render
from ddlprof.live.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console


class Lines:
    """One plain line for each look."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, snapshot: Snapshot) -> None:
        """Writes the line. Raises OSError where nobody reads any more."""
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
        """Draws the lines, or leaves a terminal alone that is too small or somebody else's. Raises OSError if gone."""
        width, height = os.get_terminal_size(self._descriptor)
        if not pinned.fits(width, height) or not self._may_draw():
            self.release()
            return
        resized = self._size not in (None, (width, height))
        self._size = width, height
        self._write(pinned.drawn(pinned.lines_of(snapshot, width - 1), height, resized))

    def release(self) -> None:
        """Gives the whole terminal back to the script."""
        if self._size is not None:
            self._size = None
            self._write(pinned.released(pinned.ROWS, os.get_terminal_size(self._descriptor).lines))

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode(errors="replace"))  # one write: nobody else's comes in between
