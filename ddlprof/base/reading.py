"""Reads files, JSON and typed records that may come from anybody, for all formats.

All reading is bounded and ends in a value or in a `ReadingError`: one line that says what is wrong and where in the
file. The caller adds the name of the file. This module does not know what the records mean. Standard library only:
msgspec (0.22) accepts numbers of 400 digits and does not say which value was wrong.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ddlprof.base.errors import ReadingError
from ddlprof.base.typed import NOT_NEGATIVE, POSITIVE, SHARE, Interval, Length, decode, settle, shown

__all__ = [
    "NOT_NEGATIVE",
    "POSITIVE",
    "SHARE",
    "Interval",
    "Length",
    "ReadingError",
    "decode",
    "parse_json",
    "read_bytes",
    "read_piece",
    "read_text",
    "settle",
    "shown",
    "text_of",
]

MAX_DEPTH = 32
"""The deepest nesting of lists and objects that is accepted in JSON; ddlprof's files have four levels."""
MAX_NUMBER_CHARACTERS = 64
"""The most characters of a number in JSON. Python writes up to 24, and 64-bit integers have 20."""
_SURROGATE = "\\ud"
"""How JSON escapes surrogates, the halves of characters beyond 16 bits. A single half is no valid text."""
_PIECE_BYTES = 1 << 20
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_bytes(path: str | Path, limit_bytes: int) -> bytes:
    """The content of a regular file of at most `limit_bytes`.

    Raises ReadingError for anything else, without blocking.
    """
    with _opened(path) as (file, size):
        if size > limit_bytes:
            raise ReadingError(f"has {_size(size)}; at most {_size(limit_bytes)} are read")
        content = file.read(size + 1)  # reading up to the limit would allocate that much
        if len(content) > size:  # it grows, or its size is not known
            content = _rest_too(file, content, limit_bytes)
    if len(content) > limit_bytes:  # it has grown, or did not tell its size
        raise ReadingError(f"has more than {_size(limit_bytes)}, which is the most that is read")
    return content


def read_piece(path: str | Path, begin: int, most_bytes: int) -> bytes:
    """At most `most_bytes` of a regular file from `begin` on; a negative `begin` counts from the end."""
    with _opened(path) as (file, size):
        file.seek(begin if begin >= 0 else max(size + begin, 0))
        return file.read(most_bytes)


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """Opens a regular file; yields it and its size in bytes. All failures are ReadingErrors."""
    # The open file is examined, as the name may come to mean another file. Without O_NONBLOCK, opening a FIFO blocks.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
        try:
            found = os.fstat(descriptor)
            _require_regular(found.st_mode)
            with open(descriptor, "rb", closefd=False) as file:
                yield file, found.st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the error for a socket
            raise ReadingError("is a socket or a device, not a regular file") from None
        raise ReadingError(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, ReadingError):
            raise
        raise ReadingError(f"cannot be read: {error}") from None  # a zero byte in the name


def read_text(path: str | Path, limit_bytes: int) -> str:
    """The text of a regular UTF-8 file, without byte-order mark."""
    return text_of(read_bytes(path, limit_bytes))


def text_of(content: bytes) -> str:
    """Decodes UTF-8 without byte-order mark. Raises ReadingError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ReadingError(f"line {line}: not UTF-8 text") from None


def parse_json(content: str | bytes, most_values: int | None = None) -> Any:
    """The value of a JSON text. Stricter than the standard.

    Refuses NaN and infinity, numbers that are too large or too long, duplicate keys, unpaired surrogates, nesting that
    is too deep, and texts of more than about `most_values` values: each takes up to 100 bytes. Raises ReadingError.
    """
    text = content if isinstance(content, str) else text_of(content)
    if most_values is not None and sum(map(text.count, ",[{")) > most_values:
        raise too_many(most_values)
    try:
        value = _DECODER.decode(text)
        if not text.isascii():
            text.encode()  # a text that does not come from bytes may have half characters itself
        if _SURROGATE in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise too_deep() from None
    except UnicodeEncodeError:
        raise ReadingError("not JSON: a text has half a character (a lone surrogate)") from None
    except json.JSONDecodeError as error:
        raise ReadingError(f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    _require_shallow(value)
    return value


def _rest_too(file: BinaryIO, begin: bytes, limit_bytes: int) -> bytes:
    content = bytearray(begin)
    while len(content) <= limit_bytes and (piece := file.read(_PIECE_BYTES)):
        content += piece
    return bytes(content)


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise ReadingError(f"is {kind}, not a regular file")


def _size(size_bytes: int) -> str:
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= one:
            value = size_bytes / one
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{size_bytes} bytes"


def _require_shallow(value: Any) -> None:
    """Raises ReadingError for nesting that is too deep. Works level by level without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [each for each in level if isinstance(each, (dict, list))]
        if not containers:
            return
        level = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    raise too_deep()


def too_many(most_values: int) -> ReadingError:
    """The error for a file with more values than are read."""
    return ReadingError(f"not read: it holds more than {most_values:,} values")


def too_deep() -> ReadingError:
    """The error for a file that is nested too deep."""
    return ReadingError(f"not read: lists and objects are nested more than {MAX_DEPTH} deep")


def _whole(text: str) -> int:
    _require_short(text)
    return int(text)


def _number(text: str) -> float:
    _require_short(text)
    value = float(text)
    if not math.isfinite(value):
        raise ReadingError(f"the number {text} is too large")
    return value


def _require_short(text: str) -> None:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ReadingError(f"a number of {len(text)} digits; at most {MAX_NUMBER_CHARACTERS} are read")


def _constant(text: str) -> None:
    raise ReadingError(f"{text} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ReadingError(f"{shown(twice)} is there twice in one object")
    return value


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_number, parse_constant=_constant, object_pairs_hook=_object)


def versioned_object(content: bytes | ReadingError, newest_schema: int, most_bytes: int) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError if it is damaged, too large or of a newer schema."""
    if isinstance(content, ReadingError):
        raise content
    if len(content) > most_bytes:
        raise ValueError("too large")
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    schema = value.get("schema")
    if isinstance(schema, int) and schema > newest_schema:
        raise ValueError(f"written by a newer ddlprof (schema {schema}); upgrade ddlprof")
    return value
