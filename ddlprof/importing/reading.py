"""Reads a trace piece by piece: the events one after the other, then the other fields.

Kineto writes one object whose `traceEvents` may be gigabytes; Chrome's JSON array format is only a list of events. Only
a window of the text and one event are in memory. A killed job leaves a torn file, whose whole events are read.
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
"""The most characters of an event. An event with all its shapes and stacks has a few thousand."""
MAX_BESIDE_CHARACTERS = 8 << 20
"""The most characters of all other fields, such as the list of groups. In memory they may be thirty times as large."""
MAX_DAMAGE_CHARACTERS = 64 << 20
"""The most characters parsed without result, as text outside of events is parsed again and again."""
MAX_DAMAGED = 1_000_000
"""The most values that are not events, which take as long to read as events."""
SMALL_CHARACTERS = 64 << 20
MAX_RATIO = 200
"""The most that decompressing may enlarge a file beyond `SMALL_CHARACTERS`; traces shrink to about a twentieth."""
EVENTS = "traceEvents"

_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r'\{\s*"ph"\s*:')
_DECODER = json.JSONDecoder(strict=False)  # names may contain line ends
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)

Advance = Callable[[int], None]
"""Called with the number of bytes of the file read so far."""


@dataclass
class OutsideEvents:
    """The fields of a trace beside its events, and how reading went. Complete after all events were read."""

    values: dict[str, Any] = field(default_factory=dict)
    has_events: bool = False
    torn: bool = False
    """Whether the file ends before the trace does."""
    damaged: int = 0
    """The number of places that could not be read."""


class NoTraceError(UserError):
    """The file contains no trace."""


def events(path: Path, beside: OutsideEvents, advance: Advance = lambda done: None) -> Iterator[dict[str, Any]]:
    """Yields every whole event of a trace.

    Raises UserError if the file cannot be read, NoTraceError if it is no trace.
    """
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
        # These return all there is of a torn file; `read` and a text wrapper would lose the last piece.
        self._read = gzip.GzipFile(fileobj=raw).read1 if head == _GZIP else raw.read
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._buffer = ""
        self._at = 0
        self._read_before = 0
        """The number of characters before the buffer."""
        self._in_vain = 0
        """The number of characters parsed without result."""
        self._ended = False
        self.torn = False

    @property
    def place(self) -> int:
        """The number of characters before the current one."""
        return self._read_before + self._at

    def _more(self, least: int = 0) -> bool:
        """Reads at least `least` more bytes into the buffer; returns whether there were any."""
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
        """Moves on by `count` characters."""
        self._at += count

    def value(self, limit: int) -> Any:
        """The next JSON value. Raises ValueError if there is none within `limit` characters."""
        self.peek()
        while True:
            length = len(self._buffer) - self._at
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                # The window doubles each time, as the text is parsed from its beginning again.
                if isinstance(error, ValueError) and length < limit and self._more(min(length, limit - length)):
                    continue
                self._in_vain += error.pos - self._at if isinstance(error, json.JSONDecodeError) else limit
                raise
            if end == len(self._buffer) and self._more():
                continue  # a number or word may continue
            self._at = end
            return value

    def find(self, pattern: re.Pattern[str]) -> bool:
        """Moves to the next match behind the current place.

        False if there is none, or too much was parsed without result.
        """
        if self._in_vain > MAX_DAMAGE_CHARACTERS + self.place:
            return False
        self._at += 1
        while True:
            match = pattern.search(self._buffer, self._at)
            if match:
                self._at = match.start()
                return True
            self._at = max(self._at, len(self._buffer) - 100)  # a match may begin in the rest
            if not self._more():
                return False


def _open(path: Path) -> BinaryIO:
    """Opens a regular file; without O_NONBLOCK a FIFO would wait."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # a zero byte in the path
        raise UserError(f"{path}: cannot be read: no name of a file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path}: is not a regular file")
    return open(descriptor, "rb")
