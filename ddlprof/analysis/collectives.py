"""Matches the collectives of the ranks of one attempt and splits each into transfer and wait.

Only durations are compared, never time stamps of two machines, so clocks need not agree. The communication of one group
is a queue: a collective starts when it has been issued and its predecessor has ended. Its transfer is the shortest
duration over the ranks, because the rank that arrives last does not wait. If every rank had issued the collective
before its predecessor ended, no rank is late, and each rank's whole duration is transfer: the ranks may then end at
different times because their links differ, which is not waiting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.records import MESSAGES, MISSING, NEVER, CollectiveShape, is_all_to_all

if TYPE_CHECKING:
    from ddlprof.store import CollectiveTable, IntArray, RankData

LATE_SHARE = 0.1  # arrival counts as late where the longest wait exceeds this share of the transfer ...
LATE_US = 50  # ... and this much, the jitter of waking a thread
_MESSAGE = "message"


@dataclass(frozen=True)
class RankCollectives:
    """The collectives of one rank: columns parallel to those of `table`, in microseconds, MISSING where not known."""

    table: CollectiveTable
    start_us: IntArray
    """The time from the start of the step until the collective is issued and the group's queue is free."""
    duration_us: IntArray
    transfer_us: IntArray
    """The time in which data move; MISSING where it cannot be told from waiting."""
    doubt_us: IntArray
    """The largest error of `transfer_us` where it rests on the clocks of two machines; otherwise 0."""
    excused_us: IntArray
    """The part of the wait that is no straggling: the awaited rank was late only because of earlier communication."""
    matched: NDArray[np.bool_]
    """Whether every rank of the group has a record of the collective."""
    late: NDArray[np.bool_]
    """Whether some rank arrived noticeably later than another."""
    last: NDArray[np.bool_]
    """Whether some rank arrived noticeably later, and this rank is the last one."""
    lost_us: IntArray
    """How long the rank that waited longest waited for the last one, where `late`; else 0. What was hidden behind
    computing on every rank costs nothing and does not count."""
    scopes: list[str]
    """For each of the table's shapes: `intra` (one machine), `inter`, or empty where not known."""

    @property
    def in_doubt(self) -> NDArray[np.bool_]:
        """Whether the clocks are too uncertain for the transfer of a collective to be shown."""
        return np.asarray(self.doubt_us > np.maximum(LATE_US, LATE_SHARE * self.duration_us))


def can_split(op: str) -> bool:
    """Whether all ranks play the same role in this operation, so that none can end before the last has arrived."""
    return op.replace("_", "").startswith(("allreduce", "allgather", "reducescatter", "alltoall", "barrier"))


def is_message(op: str) -> bool:
    """Whether the operation is one side of a point-to-point transfer."""
    return op in MESSAGES


def bus_factor(op: str, ranks: int) -> float:
    """The bytes on the busiest link for each byte of the operation, as in nccl-tests."""
    plain = op.replace("_", "")
    if ranks < 2 or plain.startswith("barrier"):
        return 0.0
    share = (ranks - 1) / ranks
    if plain.startswith("allreduce"):
        return 2 * share
    return share if can_split(op) else 1.0


def match_collectives(ranks: Sequence[RankData]) -> Matching:
    """Matches the collectives of the ranks of one attempt by group and sequence number."""
    return Matching(ranks)


class ByRank(Sequence[RankCollectives], ABC):
    """The collectives of each rank of an attempt, in the order of the ranks.

    An item is computed anew at each use, so that the columns of hundreds of ranks are never in memory together.
    """

    def __init__(self, ranks: Sequence[RankData]) -> None:
        self._ranks = ranks

    @abstractmethod
    def of_rank(self, index: int) -> RankCollectives:
        """The collectives of one rank."""

    def __len__(self) -> int:
        return len(self._ranks)

    @overload
    def __getitem__(self, index: int) -> RankCollectives: ...
    @overload
    def __getitem__(self, index: slice) -> list[RankCollectives]: ...
    def __getitem__(self, index: int | slice) -> RankCollectives | list[RankCollectives]:
        if isinstance(index, slice):
            return [self.of_rank(i) for i in range(*index.indices(len(self)))]
        return self.of_rank(range(len(self))[index])


class Matching(ByRank):
    """The matched collectives. Only the extremes over the ranks are kept for each collective."""

    def __init__(self, ranks: Sequence[RankData]) -> None:
        super().__init__(ranks)
        self._kinds: dict[tuple[str, int, int, int, int], int] = {}
        self._seqs: dict[str, IntArray] = {}
        shapes: list[list[CollectiveShape]] = []
        for rank in ranks:
            table = rank.collectives
            shapes.append(table.shapes)
            self._number(table)
        # Sorted, so that the kinds of a family have consecutive numbers: if both extremes are of it, so are all others.
        self._kinds = {kind: number for number, kind in enumerate(sorted(self._kinds))}
        families = {kind[:-1]: number for number, kind in enumerate(self._kinds)}
        self._family = np.array([families[kind[:-1]] for kind in self._kinds], dtype=np.int64)
        self._scopes = _scopes(ranks, shapes)
        ends = np.cumsum([len(seqs) for seqs in self._seqs.values()]).tolist()
        self._first = dict(zip(self._seqs, [0, *ends], strict=False))
        self._shortest, self._longest = _no_extremes(ends[-1] if ends else 0)
        self._least_kind, self._most_kind = _no_extremes(len(self._shortest))
        self._exposed = np.zeros(len(self._shortest), dtype=np.int64)  # the most on any rank
        self._size = np.zeros(len(self._shortest), dtype=np.int64)
        self._awaited = np.zeros(len(self._shortest), dtype=bool)  # some rank's queue was idle before it
        for rank in ranks:
            self._add(rank)

    @property
    def all_alike(self) -> bool:
        """Whether every rank plays the same role in every collective."""
        return all(can_split(op) and not is_all_to_all(op) for op, *_ in self._kinds)

    @property
    def has_messages(self) -> bool:
        """Whether ranks send each other messages."""
        return any(op == _MESSAGE for op, *_ in self._kinds)

    def _number(self, table: CollectiveTable) -> None:
        for shape in table.shapes:
            self._kinds.setdefault(_kind(shape), len(self._kinds))
        for group, mine in by_group(table):
            seqs, known = _ascending(table.seq[mine]), self._seqs.get(group)
            if known is None:
                self._seqs[group] = seqs
            elif not np.array_equal(known, seqs):
                self._seqs[group] = np.union1d(known, seqs)

    def _add(self, rank: RankData) -> None:
        table = rank.collectives
        key = self.key(table)
        start, duration = _queue(rank, table)
        np.logical_or.at(self._awaited, key, start == table.ready_us)
        kind = _column(table, lambda s: self._kinds[_kind(s)])
        for values, least, most in (
            (duration, self._shortest, self._longest),
            (kind, self._least_kind, self._most_kind),
        ):
            np.minimum.at(least, key, values)
            np.maximum.at(most, key, values)
        np.maximum.at(self._exposed, key, np.where(table.exposed_us == NEVER, 0, table.exposed_us))
        np.add.at(self._size, key, 1)

    @property
    def exposed_us(self) -> IntArray:
        """For each collective, the most exposed communication that it caused on any rank."""
        return self._exposed

    @property
    def keys(self) -> int:
        """The number of collectives; one that several ranks take part in counts once."""
        return len(self._shortest)

    def key(self, table: CollectiveTable) -> IntArray:
        """A number below `keys` for each collective of the table. It is the same on every rank."""
        key = np.zeros(len(table), dtype=np.int64)
        for group, mine in by_group(table):
            seqs, known = table.seq[mine], self._seqs[group]
            places = np.arange(len(seqs)) if np.array_equal(seqs, known) else np.searchsorted(known, seqs)
            key[mine] = self._first[group] + places
        return key

    def of_rank(self, index: int) -> RankCollectives:
        """The collectives of one rank, split by the durations of all ranks."""
        rank = self._ranks[index]
        table = rank.collectives
        key = self.key(table)
        start, duration = _queue(rank, table)
        shortest, longest = self._shortest[key], self._longest[key]
        least, most = self._least_kind[key], self._most_kind[key]
        matched = (self._family[least] == self._family[most]) & (self._size[key] == _column(table, lambda s: s.ranks))
        alike = (least == most) & (_column(table, lambda s: can_split(s.op)) == 1)
        split = matched & alike & (shortest != MISSING)
        awaited = self._awaited[key]
        late = split & awaited & (longest - shortest > np.maximum(LATE_US, LATE_SHARE * shortest))
        return RankCollectives(
            table=table,
            start_us=start,
            duration_us=duration,
            transfer_us=np.where(split, np.where(awaited, shortest, duration), MISSING),
            doubt_us=np.zeros(len(table), dtype=np.int64),
            excused_us=np.zeros(len(table), dtype=np.int64),
            matched=matched,
            late=late,
            last=late & (duration == shortest),
            lost_us=np.where(late, np.minimum(longest - shortest, self._exposed[key]), 0),
            scopes=[self._scopes[shape.group] for shape in table.shapes],
        )


def _family(shape: CollectiveShape) -> tuple[str, int, int, int]:
    """The properties of a collective that have to be equal on all ranks. The sizes of an all-to-all may differ."""
    if is_message(shape.op):
        return _MESSAGE, shape.ranks, -1, shape.bytes
    uneven = is_all_to_all(shape.op)
    return shape.op, shape.ranks, -1 if shape.root is None else shape.root, -1 if uneven else shape.bytes


def _kind(shape: CollectiveShape) -> tuple[str, int, int, int, int]:
    return *_family(shape), shape.bytes


def _ascending(values: IntArray) -> IntArray:
    """The unique values, ascending. They already ascend unless the file is damaged, so the slow sorting is rare."""
    return values if (np.diff(values) > 0).all() else np.unique(values)


def _no_extremes(length: int) -> tuple[IntArray, IntArray]:
    """Two arrays to take minima and maxima into: filled with the largest and the smallest integer."""
    limits = np.iinfo(np.int64)
    return np.full(length, limits.max), np.full(length, limits.min)


def by_group(table: CollectiveTable) -> Iterator[tuple[str, IntArray]]:
    """Yields each group and the rows of its collectives in the table."""
    groups = {group: number for number, group in enumerate(dict.fromkeys(s.group for s in table.shapes))}
    of = _column(table, lambda s: groups[s.group])
    for group, number in groups.items():
        mine = np.flatnonzero(of == number)
        if len(mine):
            yield group, mine


def _column(table: CollectiveTable, value: Callable[[CollectiveShape], int]) -> IntArray:
    """A property of the shape for each collective of the table."""
    return np.array([value(shape) for shape in table.shapes] or [0], dtype=np.int64)[table.shape]


def _queue(rank: RankData, table: CollectiveTable) -> tuple[IntArray, IntArray]:
    """Starts (since the start of the step) and durations of a rank's collectives in microseconds, by the queue's rule.

    A collective without a recorded end has the duration MISSING.
    """
    step_start = rank.steps["start_ns"][table.row] // 1000
    ended = table.end_us != NEVER
    ready = step_start + table.ready_us
    end = np.where(ended, step_start + table.end_us, ready)
    start = ready.copy()
    for _, mine in by_group(table):
        free = np.maximum.accumulate(end[mine])[:-1]
        start[mine[1:]] = np.maximum(ready[mine[1:]], free)
    duration = np.where(ended, np.maximum(end - start, 0), MISSING)
    return start - step_start, duration


def _scopes(ranks: Sequence[RankData], shapes: Sequence[list[CollectiveShape]]) -> dict[str, str]:
    """The scope of each group: `intra` if its ranks share a machine, `inter` if not, empty if a rank is missing."""
    members: dict[str, list[RankData]] = {}
    sizes: dict[str, int] = {}
    for rank, of_rank in zip(ranks, shapes, strict=True):
        for shape in {s.group: s for s in of_rank}.values():
            members.setdefault(shape.group, []).append(rank)
            sizes[shape.group] = shape.ranks
    on_one_machine = len({r.node for r in ranks}) == 1 and len(ranks) == ranks[0].header.world_size if ranks else False
    scopes: dict[str, str] = {}
    for group, known in members.items():
        if len({r.node for r in known}) > 1:
            scopes[group] = "inter"
        else:
            scopes[group] = "intra" if on_one_machine or len(known) == sizes[group] else ""
    return scopes
