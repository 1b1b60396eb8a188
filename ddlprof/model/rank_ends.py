"""The two ends of a rank's text file, which may still grow: its header, and how the rank ended.

For whoever needs no more of it, also in a training process. `ddlprof.store` reads the rest, and checks it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ddlprof.model import codec
from ddlprof.model.records import End, RankHeader

TAIL_BYTES = 200
"""What is read to find the end: lines of checksums, and a note of a write that failed, may follow it."""
_LONGEST_HEADER = 1 << 20
_END = '["e",'


def header_of(file: Path) -> RankHeader:
    """The header. Raises OSError or ValueError if there is none that can be read."""
    if not file.is_file():  # opening a FIFO would block
        raise ValueError("not a regular file")
    with file.open("rb") as lines:
        return codec.decode_header(lines.readline(_LONGEST_HEADER).decode(errors="replace"))


def end_of(file: Path) -> End | None:
    """How the rank ended; None if its file does not tell. Raises OSError if it cannot be read."""
    with file.open("rb") as lines:
        lines.seek(max(0, os.fstat(lines.fileno()).st_size - TAIL_BYTES))
        return end_in(lines.read())


def end_in(tail: bytes) -> End | None:
    """How the rank ended by the last lines of its file, unchecked; None if they do not tell."""
    for line in reversed(tail.decode(errors="replace").split("\n")[:-1]):
        if line.startswith(_END):
            with suppress(ValueError):
                found: End = codec.decode(line)[1]
                return found
    return None
