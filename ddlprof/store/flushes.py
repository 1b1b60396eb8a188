"""Checks the checksums in a rank's text file. Each covers the part that was written at once (a flush).

A damaged part is left out as a whole, as it is unknown which of its numbers are wrong. What follows the last checksum
is accepted: the process was killed while it wrote, or still writes. Files without checksums are accepted, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
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
    flushes: list[Flush] = field(default_factory=list)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, without their ends."""
        return self.text.decode(errors="replace").split("\n")[:-1]


def undamaged_parts(text: bytes, columns: Columns) -> Undamaged:
    """Separates undamaged from damaged parts. Raises ValueError if the header is damaged."""
    undamaged = Undamaged()
    parts: list[bytes] = []
    view = memoryview(text)
    end = text.rfind(b"\n") + 1  # a line without its end is torn: the process was killed while writing it
    begin = text.index(b"\n") + 1  # of the part; the first is the header alone
    part = 0
    search = begin - 1
    while (at := text.find(b"\n" + FLUSH, search, end)) >= 0:
        line_end = text.index(b"\n", at + 1)
        search = line_end
        flush = decode_flush(text[at + 1 : line_end], columns)
        if flush is None:
            continue  # the damage is then in the next part
        undamaged.flushes.append(flush)
        sound = crc32(view[part : at + 1]) == flush.text_crc32
        if not sound and part == 0:
            raise ValueError("the header is damaged")
        _keep(undamaged, parts, text[begin : at + 1], sound)
        part = begin = line_end + 1
    _keep(undamaged, parts, text[begin:end], True)
    undamaged.text = b"".join(parts)
    return undamaged


def _keep(undamaged: Undamaged, parts: list[bytes], part: bytes, sound: bool) -> None:
    if sound:
        parts.append(part)
        return
    undamaged.lost_parts += 1
    undamaged.lost_lines += part.count(b"\n")


def decode_flush(line: bytes, columns: Columns) -> Flush | None:
    """The checksums in a line; None if it is damaged."""
    try:
        _, values = codec.named(line.decode(), columns, parse_json)
        return decode(Flush, values, numbers_are=NOT_NEGATIVE)
    except ValueError:
        return None
