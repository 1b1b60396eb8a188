"""Makes a table of the collectives of one rank from what is on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.blocks import STEP_FIELDS
from ddlprof.model.records import MISSING, CollectiveShape, CollectiveTimes
from ddlprof.store.step_blocks import StepArrays
from ddlprof.store.tables import CollectiveTable, IntArray

_SIGNATURE = STEP_FIELDS.index("signature")
_TIMES = tuple(f.name for f in fields(CollectiveTimes))


@dataclass(frozen=True)
class Packed:
    """The collectives of one rank in the compact form on disk. `code`: for each step the number of its signature."""

    shapes: list[CollectiveShape]
    spans: list[IntArray]
    code: IntArray
    first_seq: IntArray
    """The index in `seqs` of each step's first number."""
    seqs: IntArray
    """The sequence numbers of the first collective of each group of each step."""
    times: NDArray[np.void]

    def expand(self) -> CollectiveTable:
        """Makes the table, which takes four times the memory."""
        lengths = np.array([len(span) for span in self.spans], dtype=np.int64)
        length = lengths[self.code]
        row = np.repeat(np.arange(len(length)), length)
        if not len(row):
            return CollectiveTable.empty()
        first_of_step, first_of_span = np.cumsum(length) - length, np.cumsum(lengths) - lengths
        place = np.arange(len(row)) + np.repeat(first_of_span[self.code] - first_of_step, length)
        shape, ordinal, occurrence = np.concatenate(self.spans).T[:, place]
        columns = [self.times[name].astype(np.int64) for name in _TIMES]
        seq = self.seqs[self.first_seq[row] + ordinal] + occurrence
        return CollectiveTable(self.shapes, row, shape, seq, *columns)


def pack(steps: StepArrays, known: Mapping[int, Sequence[CollectiveShape]]) -> tuple[Packed, NDArray[np.bool_]]:
    """The collectives of all steps, and a mask of the steps whose collectives are missing or unexplained."""
    found = signatures_of(steps.steps, known)
    code, spans = found.code, found.spans
    groups = np.array([span[:, 1].max(initial=-1) + 1 for span in spans], dtype=np.int64)
    told = found.readable & (found.lengths == steps.time_counts) & (groups[code] <= steps.seq_counts)
    times = steps.times
    if not told.all():
        times = times[np.repeat(told, np.maximum(steps.time_counts, 0))]
        code = np.where(told, code, len(spans))
        spans.append(_span((), {}))
    return Packed(found.shapes, spans, code, steps.seq_begins, steps.seqs, times), ~told


@dataclass(frozen=True)
class Signatures:
    """What the signatures of steps say of their collectives."""

    shapes: list[CollectiveShape]
    spans: list[IntArray]
    """By the code of a signature what `Packed.expand` needs of its collectives."""
    code: IntArray
    """For each step; so are the following."""
    readable: NDArray[np.bool_]
    """Whether the signature is known, or there is none."""
    lengths: IntArray
    """The number of collectives."""


def signatures_of(steps: IntArray, known: Mapping[int, Sequence[CollectiveShape]]) -> Signatures:
    """The signatures of steps, which are rows with the columns `STEP_FIELDS`. `known`: their shapes by number."""
    numbers, code = np.unique(steps[:, _SIGNATURE], return_inverse=True)
    shapes: dict[CollectiveShape, int] = {}
    spans = [_span(known.get(number, ()), shapes) for number in numbers.tolist()]
    readable = np.array([number == MISSING or number in known for number in numbers.tolist()], dtype=bool)
    lengths = np.array([len(span) for span in spans], dtype=np.int64)
    return Signatures(list(shapes), spans, code, readable[code], lengths[code])


def _span(signature: Sequence[CollectiveShape], shapes: dict[CollectiveShape, int]) -> IntArray:
    """For each collective of a signature: its shape's index, its group's ordinal, its number within the group.

    Shapes that are not yet in `shapes` are added to it.
    """
    groups: dict[str, int] = {}
    seen: Counter[str] = Counter()
    rows: list[tuple[int, int, int]] = []
    for shape in signature:
        index = shapes.setdefault(shape, len(shapes))
        rows.append((index, groups.setdefault(shape.group, len(groups)), seen[shape.group]))
        seen[shape.group] += 1
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
