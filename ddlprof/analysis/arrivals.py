"""Tells transfer from wait in collectives in which ranks do different work, such as broadcasts and messages.

Durations do not tell the two apart here, as ranks end at different times. Arrival times do: ranks of one machine share
a clock, and between machines its offset is known within a bound (`ddlprof.analysis.clocks`). A rank waits from its own
start until the last of the ranks has arrived that it sends to or receives from; the rest is transfer. Sending waits for
the receiver: gloo and NCCL both move data when both are there. A message that is sent ahead, into buffers, is over
before a late receiver arrives, so it has not waited.

Such a transfer may take longer on one rank than on another, which then arrives late at the next collective although it
computed no slower. The transfer causes that lateness, so ranks are compared as if they had arrived earlier by the time
for which such transfers delayed them since they were last in step (`_behind_us`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.clocks import UNBOUNDED_NS, ClockOffset, clock_origins, on_device
from ddlprof.analysis.collectives import LATE_SHARE, LATE_US, ByRank, Matching, RankCollectives, by_group, is_message
from ddlprof.model.records import MISSING, NEVER, is_all_to_all

if TYPE_CHECKING:
    from ddlprof.model.records import CollectiveShape
    from ddlprof.store import IntArray, RankData


_LONG_AGO = -(2**61)


def split_by_arrival(
    ranks: Sequence[RankData], matching: Matching, clocks: dict[int, ClockOffset | None]
) -> Sequence[RankCollectives]:
    """The collectives, split by arrival times if durations do not tell transfer from wait.

    Not on devices' timelines.
    """
    return matching if matching.all_alike or on_device(ranks) else _Arrivals(ranks, matching, clocks)


@dataclass
class _Group:
    """When each rank of a group arrived at each of its collectives: ns on one clock, a row for each rank."""

    seq: IntArray
    ranks: list[int] = field(default_factory=list)
    ready: list[IntArray] = field(default_factory=list)
    behind_us: dict[int, IntArray] = field(default_factory=dict)
    """The lateness by rank, see `_behind_us`."""
    late: NDArray[np.bool_] = field(init=False)
    """Whether some rank waited noticeably for another, and how long the one that waited longest."""
    lost_us: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.late, self.lost_us = np.zeros(len(self.seq), dtype=bool), np.zeros(len(self.seq), dtype=np.int64)


@dataclass(frozen=True)
class _Part:
    """Collectives of one rank, group and shape: rows in the rank's table, places in the group, and their split."""

    group: _Group
    rows: IntArray
    columns: IntArray
    wait_us: IntArray
    transfer_us: IntArray
    doubt_us: IntArray
    excused_us: IntArray
    came_last: NDArray[np.bool_]


class _Arrivals(ByRank):
    """The matched collectives, split by arrival times."""

    def __init__(self, ranks: Sequence[RankData], matching: Matching, clocks: dict[int, ClockOffset | None]) -> None:
        super().__init__(ranks)
        self._matching = matching
        self._origin = clock_origins(ranks, clocks)
        self._node = {rank.rank: rank.node for rank in ranks}
        self._bound = {node: UNBOUNDED_NS if c is None else c.bound_ns + c.drift_ns for node, c in clocks.items()}
        self._groups: dict[str, _Group] = {}
        for rank, matched in zip(ranks, matching, strict=True):
            self._add(rank, matched)
        # For all ranks: how long each collective took, and how far earlier transfers had delayed the rank.
        limits = np.iinfo(np.int64)
        self._least, self._most = np.full(matching.keys, limits.max), np.full(matching.keys, limits.min)
        for rank, matched in zip(ranks, matching, strict=True):
            self._compare(rank, matched)

    def _add(self, rank: RankData, matched: RankCollectives) -> None:
        table = matched.table
        for name, rows in _needing_arrivals(matched):
            group = self._groups.setdefault(name, _Group(table.seq[rows]))
            if np.array_equal(group.seq, table.seq[rows]):  # true unless the file is damaged
                group.ranks.append(rank.rank)
                group.ready.append(self._on_one_clock(rank, matched, rows, table.ready_us))

    def _compare(self, rank: RankData, matched: RankCollectives) -> None:
        parts = list(self._parts(rank, matched))
        behind = _behind_us(rank, matched, parts)
        for part in parts:
            waited = part.wait_us > np.maximum(np.maximum(LATE_US, LATE_SHARE * part.transfer_us), part.doubt_us)
            part.group.late[part.columns[waited]] = True
            exposed = np.minimum(part.wait_us, self._matching.exposed_us[self._matching.key(matched.table)[part.rows]])
            np.maximum.at(part.group.lost_us, part.columns, np.where(waited, exposed, 0))
            mine = part.group.behind_us.setdefault(rank.rank, np.zeros(len(part.group.seq), dtype=np.int64))
            mine[part.columns] = behind[part.rows]
        key, taken = self._matching.key(matched.table), matched.duration_us + behind
        np.minimum.at(self._least, key, taken)
        np.maximum.at(self._most, key, taken)

    def of_rank(self, index: int) -> RankCollectives:
        """The rank's matched collectives, split by arrival times where durations do not suffice."""
        rank, matched = self._ranks[index], self._matching[index]
        behind = _behind_us(rank, matched, list(self._parts(rank, matched)))
        transfer, doubt, excused = (c.copy() for c in (matched.transfer_us, matched.doubt_us, matched.excused_us))
        # If all ranks do the same, waits count only as far as the others would have been late without such transfers.
        key = self._matching.key(matched.table)
        taken, least = matched.duration_us + behind, self._least[key]
        wait = np.where(transfer == MISSING, 0, matched.duration_us - transfer)
        excused += wait - np.minimum(wait, taken - least)
        late = matched.late & (self._most[key] - least > np.maximum(LATE_US, LATE_SHARE * transfer))
        last = late & (taken == least)
        lost = np.where(late, np.minimum(self._most[key] - least, self._matching.exposed_us[key]), 0)
        for part in self._parts(rank, matched, excuse=True):
            transfer[part.rows], doubt[part.rows] = part.transfer_us, part.doubt_us
            excused[part.rows] = part.excused_us
            late[part.rows] = part.group.late[part.columns]
            last[part.rows] = part.group.late[part.columns] & part.came_last
            lost[part.rows] = part.group.lost_us[part.columns]
        split = {"transfer_us": transfer, "doubt_us": doubt, "excused_us": excused}
        return replace(matched, **split, late=late, last=last, lost_us=lost)

    def _parts(self, rank: RankData, matched: RankCollectives, excuse: bool = False) -> Iterator[_Part]:
        """The split of one rank's collectives by arrival times.

        `excuse`: subtracts the delays that transfers had caused.
        """
        for name, rows in _needing_arrivals(matched):
            group = self._groups[name]
            if rank.rank not in group.ranks:
                continue
            of_shape = matched.table.shape[rows]
            for number in np.unique(of_shape):
                awaited = awaited_ranks(matched.table.shapes[number], rank.rank, sorted(group.ranks))
                columns = np.flatnonzero((of_shape == number) & (matched.duration_us[rows] != MISSING))
                if max((self._bound_between(rank.rank, other) for other in awaited), default=0) < UNBOUNDED_NS:
                    yield self._part(rank, matched, group, rows[columns], columns, awaited, excuse)

    def _part(
        self, rank: RankData, matched: RankCollectives, group: _Group, rows: IntArray, columns: IntArray,
        awaited: Sequence[int], excuse: bool,
    ) -> _Part:  # fmt: skip
        start = self._on_one_clock(rank, matched, rows, matched.start_us)
        duration = 1000 * matched.duration_us[rows]
        bound = max((self._bound_between(rank.rank, other) for other in awaited), default=0)
        came = [group.ready[group.ranks.index(other)][columns] for other in awaited]
        came = [np.where(ready - bound <= start + duration, ready, _LONG_AGO) for ready in came]
        latest = np.max([np.full(len(rows), _LONG_AGO), *came], axis=0)
        low, wait, high = (np.clip(latest + error - start, 0, duration) // 1000 for error in (-bound, 0, bound))
        doubt = np.maximum(high - wait, wait - low)
        excused = np.zeros_like(wait)
        if excuse and not is_message(matched.table.shapes[matched.table.shape[rows[0]]].op if len(rows) else ""):
            behind = [1000 * group.behind_us[each][columns] for each in (rank.rank, *awaited)]
            due = [ready - late for ready, late in zip((start, *came), behind, strict=True)]
            excused = wait - np.clip((np.max(due, axis=0) - due[0]) // 1000, 0, wait)
        last = np.max([ready[columns] for ready in group.ready], axis=0)
        own = group.ready[group.ranks.index(rank.rank)][columns]
        return _Part(group, rows, columns, wait, matched.duration_us[rows] - wait, doubt, excused, own == last)

    def _on_one_clock(self, rank: RankData, matched: RankCollectives, rows: IntArray, column: IntArray) -> IntArray:
        start = rank.steps["start_ns"][matched.table.row[rows]]
        return np.asarray(self._origin[rank.rank] + start + 1000 * column[rows])

    def _bound_between(self, one: int, two: int) -> int:
        nodes = {self._node[one], self._node[two]} if two in self._node else set(self._bound)
        return sum(self._bound[node] for node in nodes) if len(nodes) > 1 else 0


def _behind_us(rank: RankData, matched: RankCollectives, parts: Sequence[_Part]) -> IntArray:
    """How many µs later a rank comes to each collective because transfers in `parts` delayed it.

    Delays count from when the rank was last in step with the others: the end of a wait for a collective in which all do
    the same.
    """
    table = matched.table
    step_start = rank.steps["start_ns"][table.row] // 1000
    needed = (table.need_us != NEVER) & (table.end_us != NEVER)
    release = step_start + np.maximum(table.end_us, np.where(needed, table.need_us, 0))
    in_step = np.sort(release[needed & (matched.transfer_us != MISSING)])
    exposed = np.zeros(len(table), dtype=np.int64)
    for part in parts:
        claimed = np.where(needed[part.rows], table.exposed_us[part.rows], 0)
        exposed[part.rows] = np.where(claimed == NEVER, 0, np.maximum(claimed - part.wait_us, 0))
    order = np.argsort(release, kind="stable")
    total = np.concatenate([[0], np.cumsum(exposed[order])])

    def until(time: IntArray) -> IntArray:
        return np.asarray(total[np.searchsorted(release[order], time, side="right")])

    ready = step_start + table.ready_us
    latest = np.searchsorted(in_step, ready, side="right")
    since = np.concatenate([[np.iinfo(np.int64).min], in_step])[latest]
    return until(ready) - until(since)


def _needing_arrivals(matched: RankCollectives) -> Iterator[tuple[str, IntArray]]:
    """Yields each group and the rows of its collectives that need arrival times, by ascending sequence number."""
    table = matched.table
    tell = np.array([_by_arrival(shape) for shape in table.shapes] or [False])[table.shape]
    open_ = tell & matched.matched & (matched.transfer_us == MISSING)
    for name, places in by_group(table):
        rows = places[open_[places]]
        if len(rows):
            yield name, rows[np.argsort(table.seq[rows], kind="stable")]


def _by_arrival(shape: CollectiveShape) -> bool:
    return is_all_to_all(shape.op) or (shape.root is not None and shape.bytes > 0)


def awaited_ranks(shape: CollectiveShape, own: int, group: Sequence[int]) -> list[int]:
    """The ranks that the rank `own` waits for. `group`: the ranks of its group in order."""
    others = [rank for rank in group if rank != own]
    root, op = shape.root, shape.op
    if root is None or root not in group or op.startswith("reduce"):  # a reduce passes through every rank
        return others
    if op.startswith("broadcast"):
        return _neighbours_in_tree(group.index(own), group.index(root), group)
    return others if own == root else [root]


def _neighbours_in_tree(own: int, root: int, group: Sequence[int]) -> list[int]:
    """The rank above `own` in the tree of gloo's broadcast, which data come from, and the ranks right below it.

    The tree is binomial: counted from the root, the rank above has the same number without the highest bit.
    """
    size = len(group)
    place = (own - root) % size
    above, at = [], place
    while at:
        at -= 1 << (at.bit_length() - 1)
        above.append(at)
    below = [place | 1 << bit for bit in range(place.bit_length(), size.bit_length()) if place | 1 << bit < size]
    return [group[(root + each) % size] for each in (*above, *below)]
