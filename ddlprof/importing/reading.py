"""Reads a trace piece by piece: the events one after the other, and what stands beside them at the end.

Kineto writes one object whose `traceEvents` may be gigabytes; the JSON array format of Chrome is a list of events
alone. Only a window of the text and one event are in memory. A killed job leaves a torn file: what is whole is read.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ddlprof.base.errors import UserError

CHUNK_BYTES = 1 << 20
MAX_EVENT_CHARACTERS = 4 << 20
"""A longer event is damage: one with all its shapes and stacks has a few thousand characters."""
MAX_BESIDE_CHARACTERS = 8 << 20
"""All values beside the events, such as the list of process groups; in memory they may be thirty times as large."""
MAX_DAMAGE_CHARACTERS = 64 << 20
"""Text outside of events is searched again and again: no more than this, beyond what was read, is parsed in vain."""
MAX_DAMAGED = 1_000_000
"""The most values that are no events, which cost as much time as events."""
SMALL_CHARACTERS = 64 << 20
MAX_RATIO = 200
"""The most that a file is larger than when compressed, beyond `SMALL_CHARACTERS`; traces shrink to a twentieth."""
EVENTS = "traceEvents"

_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r'\{\s*"ph"\s*:')
_DECODER = json.JSONDecoder(strict=False)  # names may hold line ends
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)

Advance = Callable[[int], None]
"""`advance(bytes of the file read so far)`."""


@dataclass
class OutsideEvents:
    """What a trace says besides its events, and how reading it went. Complete once all events were read."""

    values: dict[str, Any] = field(default_factory=dict)
    has_events: bool = False
    torn: bool = False
    """The file ends before the trace does."""
    damaged: int = 0
    """The places where something could not be read."""


class NoTraceError(UserError):
    """A file that holds no trace."""


def events(path: Path, beside: OutsideEvents, advance: Advance = lambda done: None) -> Iterator[dict[str, Any]]:
    """Every whole event of a trace. Raises UserError if the file cannot be read, NoTraceError if it is no trace."""
    with _open(path) as raw:
        window = _Window(path, raw, advance)
        first = window.peek()
        if first == "[":
            beside.has_events = True
            window.skip(1)
            yield from _list(window, beside)
        elif first == "{":
            window.skip(1)
            yield from _object(window, beside)
        else:
            what = "not JSON" if first else "damaged from its beginning on" if window.torn else "empty"
            raise NoTraceError(f"{path}: is no trace: {what}")
        beside.torn |= window.torn
        if not beside.has_events:
            raise NoTraceError(
                f"{path}: is no trace: no {EVENTS} in {'what can be read of it' if beside.torn else 'it'}"
            )


def _object(window: _Window, beside: OutsideEvents) -> Iterator[dict[str, Any]]:
    left = MAX_BESIDE_CHARACTERS
    while True:
        first = window.peek()
        if first == "}":
            return
        begin = window.place
        try:
            key = window.value(left) if first == '"' else None
        except ValueError:
            key = None
        if not isinstance(key, str) or window.peek() != ":":
            beside.torn = True
            return
        window.skip(1)
        if key == EVENTS and window.peek() == "[":
            beside.has_events = True
            window.skip(1)
            yield from _list(window, beside)
            if beside.torn:
                return
            continue
        try:
            beside.values[key] = window.value(left)
        except (ValueError, RecursionError):
            beside.torn = True
            return
        left -= window.place - begin


def _list(window: _Window, beside: OutsideEvents) -> Iterator[dict[str, Any]]:
    while True:
        first = window.peek()
        if first == "]":
            window.skip(1)
            return
        if not first:
            beside.torn = True
            return
        try:
            event = window.value(MAX_EVENT_CHARACTERS)
        except (ValueError, RecursionError):
            if not window.find(_NEXT_EVENT):
                beside.torn = True
                return
            beside.damaged += 1
            continue
        if isinstance(event, dict) and "ph" in event:
            yield event
            continue
        beside.damaged += 1
        if beside.damaged > MAX_DAMAGED:
            beside.torn = True
            return


class _Window:
    """The part of the text that is in memory."""

    def __init__(self, path: Path, raw: BinaryIO, advance: Advance) -> None:
        self._path = path
        self._raw = raw
        self._advance = advance
        head = raw.read(2)
        raw.seek(0)
        # Of a torn file these give what there is, where `read` and a text wrapper would lose the last piece.
        self._read = gzip.GzipFile(fileobj=raw).read1 if head == _GZIP else raw.read
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._buffer = ""
        self._at = 0
        self._read_before = 0
        """The characters before those in the buffer."""
        self._in_vain = 0
        """The characters that were parsed and gave no value."""
        self._ended = False
        self.torn = False

    @property
    def place(self) -> int:
        """The number of characters before this one."""
        return self._read_before + self._at

    def _more(self, least: int = 0) -> bool:
        """Reads on, at least so many bytes; whether there was anything."""
        if self._ended:
            return False
        pieces, length = [self._buffer[self._at :]], 0
        while length < max(CHUNK_BYTES, least) and not self._ended:
            piece = self._piece()
            self._ended = not piece
            length += len(piece)
            pieces.append(self._decoder.decode(piece, final=self._ended))
        self._advance(self._raw.tell())
        self._read_before += self._at
        self._buffer, self._at = "".join(pieces), 0
        if self.place > max(SMALL_CHARACTERS, MAX_RATIO * self._raw.tell()):
            raise UserError(f"{self._path}: would unpack to more than {MAX_RATIO} times its size, as no trace does")
        return length > 0

    def _piece(self) -> bytes:
        try:
            return self._read(CHUNK_BYTES)
        except _DAMAGE:
            self.torn = True
        except OSError as error:
            raise UserError(f"{self._path}: cannot be read: {error.strerror or error}") from None
        return b""

    def peek(self) -> str:
        """The next character that is neither space nor comma; empty at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def skip(self, count: int) -> None:
        """Passes over characters that were looked at."""
        self._at += count

    def value(self, limit: int) -> Any:
        """The next JSON value. Raises ValueError if there is none of at most `limit` characters."""
        self.peek()
        while True:
            length = len(self._buffer) - self._at
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                # Twice as much each time: what was parsed before is parsed again.
                if isinstance(error, ValueError) and length < limit and self._more(min(length, limit - length)):
                    continue
                self._in_vain += error.pos - self._at if isinstance(error, json.JSONDecodeError) else limit
                raise
            if end == len(self._buffer) and self._more():
                continue  # a number or a word may go on
            self._at = end
            return value

    def find(self, pattern: re.Pattern[str]) -> bool:
        """Goes to the next place behind this one that matches; whether there is one, and it is worth while."""
        if self._in_vain > MAX_DAMAGE_CHARACTERS + self.place:
            return False
        self._at += 1
        while True:
            match = pattern.search(self._buffer, self._at)
            if match:
                self._at = match.start()
                return True
            self._at = max(self._at, len(self._buffer) - 100)  # the pattern may begin in what is left
            if not self._more():
                return False


def _open(path: Path) -> BinaryIO:
    """Opens a regular file; without O_NONBLOCK a FIFO would wait."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # a zero byte in the name
        raise UserError(f"{path}: cannot be read: no name of a file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path}: is not a regular file")
    return open(descriptor, "rb")
