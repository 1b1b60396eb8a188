"""Makes arrays of the blocks of a rank's steps (`ddlprof.model.blocks`).

Every value is checked here and nowhere else: checksums find damage, and what was made up is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.model import blocks
from ddlprof.model.blocks import COLLECTIVES, FIRST_SEQS, STEP_FIELDS, TIMES, Block, Layout
from ddlprof.model.records import MISSING, Aggregate, CollectiveTimes
from ddlprof.store.tables import IntArray, column_default, records_of

MOST_SUMS = 1000
"""About the most aggregates that are made of a rank's sums."""
_TIME_FIELDS = tuple(f.name for f in fields(CollectiveTimes))
_SUM_FIELDS = tuple(f.name for f in fields(Aggregate))


@dataclass
class StepArrays:
    """The steps of a rank as they are in its file."""

    steps: IntArray
    """A row for each step, with the columns `STEP_FIELDS`."""
    seq_counts: IntArray
    """How many of `seqs` each step has."""
    seqs: IntArray
    time_counts: IntArray
    """How many of `times` each step has."""
    times: NDArray[np.void]
    seq_begins: IntArray
    """Where in `seqs` those of each step begin; in `times` they follow each other."""

    def only(self, kept: NDArray[np.bool_]) -> StepArrays:
        """The steps of a mask."""
        if kept.all():
            return self
        times = self.times[np.repeat(kept, self.time_counts)]
        columns = (self.seq_counts[kept], self.seqs, self.time_counts[kept], times, self.seq_begins[kept])
        return StepArrays(self.steps.T[:, kept].T, *columns)


def step_arrays(found: Sequence[Block], layouts: Mapping[str, Layout]) -> StepArrays:
    """The steps in these blocks. Blocks whose counts contradict each other are left out.

    Raises ValueError if the header does not name the columns that there must be.
    """
    if not set(_TIME_FIELDS) <= {name for name, _ in layouts.get(TIMES, ())}:
        raise ValueError("the header does not name the columns of collectives")
    of_steps = [block for block in found if block.kind in (blocks.STEP, blocks.LONG_STEP)]
    counts = np.array([block.rows for block in of_steps], dtype=np.int64)
    is_long = np.repeat(np.array([block.kind == blocks.LONG_STEP for block in of_steps], dtype=bool), counts)
    values = np.empty((len(STEP_FIELDS) + 2, len(is_long)), dtype=np.int64)
    for kind, rows in ((blocks.STEP, ~is_long), (blocks.LONG_STEP, is_long)):
        if rows.any():
            table = _table([block for block in of_steps if block.kind == kind], layouts[kind.decode()])
            target = slice(None) if rows.all() else rows
            for index, name in enumerate((*STEP_FIELDS, FIRST_SEQS, COLLECTIVES)):
                values[index, target] = _column(table, name)
    seq_counts, time_counts = values[-2], values[-1]
    sound = _agree(of_steps, counts, seq_counts, time_counts)
    if not sound.all():
        return step_arrays([block for block, good in zip(of_steps, sound.tolist(), strict=True) if good], layouts)
    seqs = np.frombuffer(b"".join(block.whole[block.seqs_at : block.times_at] for block in of_steps), dtype="<i8")
    packed = b"".join(block.whole[block.times_at :] for block in of_steps)
    times = np.frombuffer(packed, dtype=dtype_of(layouts.get(TIMES, ())))
    return StepArrays(values[:-2].T, seq_counts, seqs, time_counts, times, np.cumsum(seq_counts) - seq_counts)


def _agree(found: Sequence[Block], rows: IntArray, seq_counts: IntArray, time_counts: IntArray) -> NDArray[np.bool_]:
    """Which blocks have as many sequence numbers and times as their steps say."""
    seqs, times = (np.array([block.counts[at] for block in found], dtype=np.int64) for at in (1, 2))
    of = np.repeat(np.arange(len(rows)), rows)
    wanted = [np.bincount(of, weights=each, minlength=len(rows)) for each in (seq_counts, time_counts)]
    return np.asarray((wanted[0] == seqs) & (wanted[1] == times))


def dtype_of(layout: Sequence[tuple[str, str]]) -> np.dtype[Any]:
    """A row with these columns, in little-endian bytes without padding."""
    return np.dtype([(name, f"<{letter}") for name, letter in layout])


def _table(found: Sequence[Block], layout: Layout) -> NDArray[np.void]:
    return np.frombuffer(b"".join(block.whole[blocks.HEAD_BYTES : block.seqs_at] for block in found), dtype_of(layout))


def _column(table: NDArray[np.void], name: str) -> IntArray:
    """A column as 64 bits, with None as MISSING. Raises ValueError if there is no such column and it has no default."""
    if name not in (table.dtype.names or ()):
        return np.full(len(table), column_default(name), dtype=np.int64)
    values = table[name]
    wide = values.astype(np.int64)  # of 64 bits without a sign, the largest becomes -1
    if values.dtype.kind == "u" and values.dtype.itemsize < wide.itemsize:
        wide[values == np.iinfo(values.dtype).max] = MISSING
    return wide


def sums_of(found: Sequence[Block], layouts: Mapping[str, Layout]) -> IntArray:
    """A row for each aggregate, with the fields of `Aggregate`."""
    of_sums = [block for block in found if block.kind == blocks.SUMS]
    if not of_sums:
        return np.zeros((0, len(_SUM_FIELDS)), dtype=np.int64)
    table = _table(of_sums, layouts[blocks.SUMS.decode()])
    return np.stack([_column(table, name) for name in _SUM_FIELDS], axis=1)


def as_aggregates(rows: IntArray) -> list[Aggregate]:
    """The rows of `sums_of` as records."""
    return records_of(Aggregate, _SUM_FIELDS, rows.tolist())


def merged(rows: IntArray, after_step: int) -> IntArray:
    """About `MOST_SUMS` rows with the same sums: neighbours with equal flags and measured classes are added up.

    Sums that begin after `after_step` stay as they are.
    """
    if len(rows) <= MOST_SUMS:
        return rows
    last = rows[rows[:, 0] > after_step]
    rows = rows[rows[:, 0] <= after_step]
    pattern = np.column_stack([rows == MISSING, rows[:, _SUM_FIELDS.index("flags")]])
    _, kind = np.unique(pattern, axis=0, return_inverse=True)
    order = np.argsort(kind.ravel(), kind="stable")
    rows, kind = rows[order], kind.ravel()[order]
    begins = np.flatnonzero(np.diff(kind, prepend=-1))
    group = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    edge = (group % -(-len(rows) // MOST_SUMS)) == 0
    starts = np.flatnonzero(edge)
    added = np.add.reduceat(np.maximum(rows, 0), starts, axis=0)
    added[:, 0] = rows[starts, 0]
    added[:, _SUM_FIELDS.index("flags")] = rows[starts, _SUM_FIELDS.index("flags")]
    added[rows[starts] == MISSING] = MISSING
    return np.concatenate([added[np.argsort(added[:, 0], kind="stable")], last])
