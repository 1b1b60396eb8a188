"""The binary form of steps: `rank-N.steps` is a row of blocks, each with a sequence number and a checksum.

A block holds rows of fixed width in little-endian bytes: steps (`STEP`, or `LONG_STEP` where a value does not fit) or
sums of steps (`SUMS`). After the rows of steps come the sequence numbers of their first collectives (64 bits each) and
the times of their collectives, in the order of the steps. The header of the rank's text file names the columns of each
kind of block, with their types; the names end in the units. Readers use only these names.

The largest value of an unsigned column, and -1 in a signed one, stands for None. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeAlias
from zlib import crc32

from ddlprof.model.records import MISSING, Aggregate, CollectiveTimes, StepRow

STEP, LONG_STEP, SUMS = b"s", b"S", b"a"
"""The kinds of blocks."""
TIMES = "times"
"""The columns of the times of a collective."""
FIRST_SEQS, COLLECTIVES = "first_seqs", "collectives"
"""The last two columns of a step: how many sequence numbers and how many collectives it has."""

Layout: TypeAlias = tuple[tuple[str, str], ...]
"""The name and the type of each column: `u4`, `i8`, ... as numpy calls them."""

_WIDE = ("start_ns", "peak_memory_bytes")
STEP_FIELDS = tuple(f.name for f in fields(StepRow) if f.name != FIRST_SEQS)
"""The fields of a step that are one integer each."""
_SUM_NAMES = tuple(f.name for f in fields(Aggregate))

LAYOUTS: Mapping[str, Layout] = {
    STEP.decode(): (
        *((name, "i8" if name in _WIDE else "u4") for name in STEP_FIELDS),
        (FIRST_SEQS, "u4"),
        (COLLECTIVES, "u4"),
    ),
    LONG_STEP.decode(): (*((name, "i8") for name in STEP_FIELDS), (FIRST_SEQS, "u4"), (COLLECTIVES, "u4")),
    SUMS.decode(): tuple((name, "i8") for name in _SUM_NAMES),
    TIMES: tuple((f.name, "u4") for f in fields(CollectiveTimes)),
}
"""The columns that this version writes."""

_NONE = 0xFFFFFFFF
_LETTERS = {"u4": "I", "i8": "q"}


def _struct(kind: str) -> struct.Struct:
    return struct.Struct("<" + "".join(_LETTERS[letter] for _, letter in LAYOUTS[kind]))


_STEP, _LONG_STEP, _SUMS, _TIMES = map(_struct, LAYOUTS)
_IS_WIDE = tuple(name in _WIDE for name in STEP_FIELDS)
_step_values = attrgetter(*STEP_FIELDS)
_sum_values = attrgetter(*_SUM_NAMES)

MAGIC = b"\x89DL"
_HEAD = struct.Struct("<3scIIIII")
"""Magic, kind, sequence number, rows, sequence numbers of collectives, collectives, checksum of all else."""
HEAD_BYTES = _HEAD.size
_UNCHECKED = struct.Struct("<3scIIII")
SEQ_BYTES = 8
MAX_BLOCK_BYTES = 64 << 20
"""The most bytes of a block."""
_MOST_EFFORT = 4
"""How often all bytes may be checked in the search for an undamaged block."""


def encode_row(row: StepRow, collectives: int) -> tuple[bytes, bytes]:
    """The kind of block that a step belongs into, and its bytes there."""
    values = _step_values(row)
    counts = (len(row.first_seqs), collectives)
    if _NONE not in values:
        absent = (None, MISSING)
        short = [(MISSING if wide else _NONE) if v in absent else v for v, wide in zip(values, _IS_WIDE, strict=True)]
        try:
            return STEP, _STEP.pack(*short, *counts)
        except struct.error:  # a step of more than four seconds
            pass
    return LONG_STEP, _LONG_STEP.pack(*(MISSING if v is None else v for v in values), *counts)


def encode_seqs(first_seqs: Sequence[int]) -> bytes:
    """The sequence numbers of a step's first collective in each group."""
    return struct.pack(f"<{len(first_seqs)}q", *first_seqs)


def encode_times(times: Sequence[CollectiveTimes]) -> bytes:
    """The times of collectives, 16 bytes for each."""
    return b"".join(_TIMES.pack(t.ready_us, t.end_us, t.need_us, t.exposed_us) for t in times)


def encode_sums(sums: Aggregate) -> bytes:
    return _SUMS.pack(*(MISSING if v is None else v for v in _sum_values(sums)))


def encode_block(kind: bytes, number: int, counts: tuple[int, int, int], payload: bytes) -> bytes:
    """A whole block. `number`: how many blocks of the file come before it. `counts`: of rows, of sequence numbers and
    of collectives; `payload` has them in this order."""
    head = (MAGIC, kind, number & _NONE, *counts)
    return _HEAD.pack(*head, crc32(payload, crc32(_UNCHECKED.pack(*head)))) + payload


@dataclass(slots=True)
class Block:
    """One undamaged block."""

    kind: bytes
    number: int
    """How many blocks of the file come before it."""
    counts: tuple[int, int, int]
    """The numbers of rows, of sequence numbers and of collectives."""
    seqs_at: int
    """Where in `whole` the sequence numbers begin, after the rows."""
    times_at: int
    """Where the times of collectives begin."""
    whole: memoryview
    """The block as it is in the file."""

    @property
    def rows(self) -> int:
        return self.counts[0]

    def copied(self) -> Block:
        """The same without the data around it."""
        return Block(self.kind, self.number, self.counts, self.seqs_at, self.times_at, memoryview(bytes(self.whole)))


class BlockStream:
    """Takes the blocks of a file from its bytes: all at once, or as the file grows."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self.lost = 0
        """How many blocks are missing so far, by the numbers of the others."""
        self._rows = {kind.encode(): _size(layout) for kind, layout in layouts.items() if kind != TIMES}
        self._times = _size(layouts.get(TIMES, ()))
        self.behind = 0
        """How many bytes came after the last undamaged block."""
        self._next = 0

    def take(self, data: bytes) -> tuple[list[Block], int]:
        """The undamaged blocks, and where the rest begins, which may be the beginning of another block.

        Whatever is between undamaged blocks is skipped: damage, or what remains of a write that failed and was
        repeated. Raises nothing.
        """
        view, blocks, at, last = memoryview(data), [], 0, 0
        unfinished: int | None = None
        effort = _MOST_EFFORT * len(data)
        while effort >= 0 and (at := data.find(MAGIC, at)) >= 0 and at + HEAD_BYTES <= len(data):
            _, kind, number, rows, seqs, times, checksum = _HEAD.unpack_from(view, at)
            size = self._rows.get(kind)
            seqs_at = HEAD_BYTES + rows * (size or 0)
            times_at = seqs_at + seqs * SEQ_BYTES
            length = times_at + times * self._times
            if size is None or length > MAX_BLOCK_BYTES:
                at += 1
                continue
            if at + length > len(data):
                unfinished = at if unfinished is None else unfinished
                at += 1
                continue
            whole = view[at : at + length]
            if crc32(whole[HEAD_BYTES:], crc32(whole[: _UNCHECKED.size])) != checksum:
                at, effort = at + 1, effort - length
                continue
            at = last = at + length
            unfinished = None
            if number >= self._next:  # otherwise it was written twice
                self.lost += number - self._next
                self._next = number + 1
                blocks.append(Block(kind, number, (rows, seqs, times), seqs_at, times_at, whole))
        self.behind = len(data) - last
        if unfinished is None:
            unfinished = at if at >= 0 else max(len(data) - len(MAGIC) + 1, 0)
        return blocks, unfinished


def _size(layout: Layout) -> int:
    return sum(int(letter[1:]) for _, letter in layout)


def layouts_of(header: Mapping[str, Any]) -> dict[str, Layout]:
    """The columns of blocks that a header names. Raises ValueError if they are damaged or missing."""
    named = header.get("blocks")
    if not isinstance(named, dict) or len(named) > _MOST_KINDS:
        raise ValueError("the header names no columns of blocks")
    return {kind: _checked(layout) for kind, layout in named.items()}


_MOST_KINDS, _MOST_COLUMNS = 100, 1000
_TYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")


def _checked(layout: Any) -> Layout:
    if not isinstance(layout, list) or not 0 < len(layout) <= _MOST_COLUMNS:
        raise ValueError("the header's columns of blocks are damaged")
    for column in layout:
        if (
            not isinstance(column, list)
            or len(column) != 2
            or not all(isinstance(each, str) for each in column)
            or column[1] not in _TYPES
        ):
            raise ValueError("the header's columns of blocks are damaged")
    if len({name for name, _ in layout}) < len(layout):
        raise ValueError("the header's columns of blocks are damaged")
    return tuple((name, letter) for name, letter in layout)
