"""Holds the steps of a rank that are not written yet, in the form of blocks and of sums."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ddlprof.model import blocks
from ddlprof.model.records import Aggregate, CollectiveTimes, StepRow

_SUMMED = tuple(f.name for f in fields(Aggregate) if f.name not in ("first_step", "steps", "flags"))
BLOCK_BYTES = 1 << 20
"""About the most bytes of a block."""


@dataclass(slots=True)
class _Rows:
    kind: bytes
    rows: list[bytes] = field(default_factory=list)
    seqs: list[bytes] = field(default_factory=list)
    times: list[bytes] = field(default_factory=list)
    seq_count: int = 0
    time_count: int = 0
    size: int = 0


@dataclass(slots=True)
class _Sums:
    first_step: int
    steps: int
    values: dict[str, int | None]

    def add(self, row: StepRow) -> None:
        self.steps += 1
        for name in _SUMMED:
            old, new = self.values[name], getattr(row, name)
            self.values[name] = None if old is None or new is None else old + new


class StepBuffer:
    """Takes rows and sums, and gives the blocks of all that came since the last time."""

    def __init__(self) -> None:
        self.size = 0
        """The bytes of the rows that it holds."""
        self._blocks: list[_Rows] = []
        self._sums: dict[int, _Sums] = {}
        self._number = 0

    def keep(self, row: StepRow, times: list[CollectiveTimes]) -> int:
        """Takes a step as a row; returns its bytes."""
        kind, packed = blocks.encode_row(row, len(times))
        if not self._blocks or self._blocks[-1].kind != kind or self._blocks[-1].size > BLOCK_BYTES:
            self._blocks.append(_Rows(kind))
        block = self._blocks[-1]
        seqs, packed_times = blocks.encode_seqs(row.first_seqs), blocks.encode_times(times)
        block.rows.append(packed)
        block.seqs.append(seqs)
        block.times.append(packed_times)
        block.seq_count += len(row.first_seqs)
        block.time_count += len(times)
        size = len(packed) + len(seqs) + len(packed_times)
        block.size += size
        self.size += size
        return size

    def add(self, row: StepRow) -> None:
        """Takes a step into the sums, apart from steps with other flags."""
        sums = self._sums.get(row.flags)
        if sums is None:
            self._sums[row.flags] = _Sums(row.step, 1, {name: getattr(row, name) for name in _SUMMED})
        else:
            sums.add(row)

    def take(self, last: bool = False) -> bytes:
        """The blocks, in order. Sums are given with the next row, and at the end (`last`)."""
        if not self._blocks and not (last and self._sums):
            return b""
        held, self._blocks, self.size = self._blocks, [], 0
        found = [
            self._block(
                each.kind, (len(each.rows), each.seq_count, each.time_count), [*each.rows, *each.seqs, *each.times]
            )
            for each in held
        ]
        if self._sums:
            sums = [
                Aggregate(each.first_step, each.steps, **each.values, flags=flags)  # type: ignore[arg-type]
                for flags, each in self._sums.items()
            ]
            found.append(self._block(blocks.SUMS, (len(sums), 0, 0), list(map(blocks.encode_sums, sums))))
            self._sums = {}
        return b"".join(found)

    def _block(self, kind: bytes, counts: tuple[int, int, int], content: list[bytes]) -> bytes:
        self._number += 1
        return blocks.encode_block(kind, self._number - 1, counts, b"".join(content))
