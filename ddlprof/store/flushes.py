"""Checks the checksums in a rank's text file. Each covers the part that was written at once (a flush).

A damaged part is left out as a whole, as it is unknown which of its numbers are wrong. What follows the last checksum
is accepted: the process was killed while it wrote, or still writes. Files without checksums are accepted, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from zlib import crc32

from ddlprof.base.reading import NOT_NEGATIVE, decode, parse_json
from ddlprof.model import codec
from ddlprof.model.codec import Columns
from ddlprof.model.records import Flush

FLUSH = b'["f",'
"""The beginning of the line that ends a flush."""


@dataclass
class Undamaged:
    """The undamaged parts of a rank's text file."""

    text: bytes = b""
    """The whole lines, each with its end, without the header and without those that end a flush."""
    lost_parts: int = 0
    lost_lines: int = 0

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, without their ends."""
        return self.text.decode(errors="replace").split("\n")[:-1]


class FlushPart(NamedTuple):
    """What was written at once, up to the line that ends it."""

    text: bytes
    flush: Flush
    sound: bool
    """Whether it matches its checksum."""


def take_parts(text: bytes, columns: Columns) -> tuple[list[FlushPart], int]:
    """The parts of a text that end with a checksum, and where the rest begins, which may be half written."""
    parts: list[FlushPart] = []
    begin = search = 0
    while (at := text.find(b"\n" + FLUSH, search)) >= 0 and (end := text.find(b"\n", at + 1)) >= 0:
        search = end
        flush = _decode(text[at + 1 : end], columns)
        if flush is not None:  # otherwise the damage is in the next part
            part = text[begin : at + 1]
            parts.append(FlushPart(part, flush, crc32(part) == flush.text_crc32))
            begin = end + 1
    return parts, begin


def undamaged_parts(text: bytes, columns: Columns) -> Undamaged:
    """Separates undamaged from damaged parts. Raises ValueError if the header is damaged."""
    parts, rest = take_parts(text, columns)
    if parts and not parts[0].sound:
        raise ValueError("the header is damaged")
    lost = [part.text for part in parts if not part.sound]
    kept = [part.text for part in parts if part.sound]
    kept.append(text[rest : text.rfind(b"\n") + 1])  # without a torn line: the process was killed while writing it
    kept[0] = kept[0][text.index(b"\n") + 1 :]  # the header
    return Undamaged(b"".join(kept), len(lost), sum(part.count(b"\n") for part in lost))


def _decode(line: bytes, columns: Columns) -> Flush | None:
    """The checksums in a line; None if it is damaged."""
    try:
        _, values = codec.named(line.decode(), columns, parse_json)
        return decode(Flush, values, numbers_are=NOT_NEGATIVE)
    except ValueError:
        return None
