"""Splits the exposed communication of each step into its parts by replaying the step's communication.

The replay keeps the durations of computation between communication events, not their time stamps: time saved at one
wait moves everything after it earlier, and a need that moves earlier may expose communication that was hidden.
E0 is the measured exposed time. E1 is that of a replay in which no rank waits for a later one. E2 is that of a replay
in which, in addition, every collective takes as long as it would inside one machine. The parts are then
straggler = E0 - E1, network = E1 - E2, interconnect = E2.

`SizeSweeps` estimates how long a collective would take inside one machine, from collectives of several sizes that were
timed there. A ring of n ranks does an all-reduce in 2 (n - 1) rounds that move 2 (n - 1) / n of the bytes over the
busiest link (Patarasuk and Yuan, 2009); the rounds and bytes of other operations follow from their `bus_factor`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.collectives import RankCollectives, bus_factor, can_split
from ddlprof.analysis.dimensions import OfDimensions, columns_of, exposed_by_dimension
from ddlprof.model.records import DEVICE_CLOCK, MISSING, NEVER, Calibration, CollectiveShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlprof.store import IntArray, RankData

    InsideMachine = Callable[[CollectiveShape], float | None]
    _Parts = tuple[IntArray, IntArray, IntArray, IntArray]
    """Interconnect, network, straggler and bubble."""

UNSPLIT_SHARE_OF_COMM = 0.1  # time that cannot be split counts as interconnect or network up to this share of comm ...
UNSPLIT_SHARE_OF_STEP = 0.01  # ... or up to this share of the step, where it decides nothing
ANY_SOURCE = ":any>"  # in the name of a channel that received from ANY_SOURCE (`ddlprof.collect.hooks.collective`)
NO_END = "the end of some collectives is not known"
_CLOCKS_UNKNOWN = "nothing tells how far the clocks of its machines are apart"
DOUBT_SHARE_OF_STEP = 0.05  # the largest error because of clocks: half of the share that makes a verdict


@dataclass(frozen=True)
class CommParts:
    """Nanoseconds for each step of one rank, MISSING where the parts cannot be told apart."""

    interconnect: IntArray
    network: IntArray
    straggler: IntArray
    bubble: IntArray
    """The part of waiting that the schedule of a pipeline makes; see `ddlprof.analysis.bubbles`."""
    unsplit_us: Counter[str] = field(default_factory=Counter)
    """The exposed microseconds that could not be split, by reason."""
    by_dimension: dict[str, IntArray] = field(default_factory=dict)
    """The communication of each dimension and its parts, by the names of `dimensions.COLUMNS`; only those there are."""


def split_comm(
    rank: RankData, matched: RankCollectives, inside: InsideMachine, bubble: IntArray | None = None
) -> CommParts:
    """The parts of `comm` for each step, which add up to it exactly.

    `inside` estimates the microseconds that a collective would take inside one machine; None where that is not known.
    `bubble`: the bubble in each step if there is a pipeline.
    """
    comm = rank.steps["comm_ns"]
    if rank.header.world_size == 1:
        nobody = np.where(comm == MISSING, MISSING, 0)
        return CommParts(comm.copy(), nobody, nobody.copy(), nobody.copy())
    table = matched.table
    exposed = np.where(table.exposed_us == NEVER, 0, table.exposed_us)
    split = matched.transfer_us != MISSING
    steps = len(comm)
    splittable_ns = 1000 * _sum_by_step(table.row, np.where(split, exposed, 0), steps)
    unsplit_ns = comm - np.minimum(splittable_ns, comm)
    allowed = np.maximum(UNSPLIT_SHARE_OF_COMM * comm, UNSPLIT_SHARE_OF_STEP * rank.steps["step_ns"])
    known = (comm != MISSING) & (unsplit_ns <= allowed)
    if rank.untold is not None:
        known &= ~rank.untold | (comm == 0)
    doubt_ns = 1000 * _sum_by_step(table.row, np.where(split, np.minimum(matched.doubt_us, exposed), 0), steps)
    clear = doubt_ns <= DOUBT_SHARE_OF_STEP * rank.steps["step_ns"]
    known &= clear

    transfer = transfer_us(matched)
    saved = saved_of_each_us(rank, matched, transfer)
    saved_ns = 1000 * _saved_by_step(table.row, saved, steps)
    straggler = np.where(known, np.clip(saved_ns, 0, comm), MISSING)
    inner, all_known = _inside_us(rank, matched, transfer, inside)
    within = known & (_sum_by_step(table.row, ~all_known, steps) == 0)
    same = np.array_equal(inner, transfer)  # nothing would be faster: a second replay would equal the first
    faster = saved if same else saved_of_each_us(rank, matched, inner)
    faster_ns = 1000 * _saved_by_step(table.row, faster, steps) - saved_ns
    network = np.where(within, np.clip(faster_ns, 0, comm - straggler), MISSING)
    parts = (np.where(within, comm - straggler - network, MISSING), network, straggler, np.where(known, 0, MISSING))
    if bubble is not None:
        parts = _without_bubble(rank, matched, parts, bubble)
    of = OfDimensions(rank, table)
    by_dimension = {}
    if of.are_known:
        of_comm = exposed_by_dimension(rank, table, of, allowed)
        savings = [1000 * of.sums(table.row, values, steps) for values in (saved, faster - saved)]
        by_dimension = columns_of(of_comm, savings, parts)
    reasons = _reasons(matched, exposed, ~clear[table.row], rank.header.clock == DEVICE_CLOCK)
    return CommParts(*parts, reasons, by_dimension)


def _without_bubble(rank: RankData, matched: RankCollectives, parts: _Parts, bubble: IntArray) -> _Parts:
    """The parts with the bubble taken out of the others: out of waiting first, as nothing moves in it.

    In a pipeline, waiting is at least what the rank waited for others in each collective: the replay takes a message
    that was sent ahead for slow. Where the bubble is MISSING, the waiting for later ranks is not known either.
    """
    interconnect, network, straggler, _ = parts
    table, comm = matched.table, rank.steps["comm_ns"]
    waits = np.where(matched.transfer_us == MISSING, 0, matched.duration_us - transfer_us(matched))
    exposed = np.where(table.exposed_us == NEVER, 0, table.exposed_us)
    waited = 1000 * _sum_by_step(table.row, np.clip(waits, 0, exposed), len(comm))
    known, unknown = straggler != MISSING, bubble == MISSING
    later = np.maximum(np.minimum(np.maximum(straggler, waited), comm) - bubble, 0)
    moving = comm - later - bubble
    between = np.where(network == MISSING, MISSING, np.minimum(network, moving))
    inside = np.where(interconnect == MISSING, MISSING, moving - between)
    return (
        np.where(unknown, interconnect, inside),
        np.where(unknown, network, between),
        np.where(unknown | ~known, MISSING, later),
        bubble,
    )


def transfer_us(matched: RankCollectives) -> IntArray:
    """How long each collective takes if no rank is late; where the transfer is not known, its measured duration."""
    transfer = matched.transfer_us + matched.excused_us  # a rank that communication held up is no straggler
    return np.where(matched.transfer_us != MISSING, transfer, np.maximum(matched.duration_us, 0))


def _inside_us(
    rank: RankData, matched: RankCollectives, transfer: IntArray, inside: InsideMachine
) -> tuple[IntArray, NDArray[np.bool_]]:
    """The µs that each collective would take inside one machine, and a mask of where that is known."""
    table = matched.table
    if not table.shapes:
        return transfer, np.ones(len(table), dtype=bool)
    intra = [scope == "intra" for scope in matched.scopes]
    limits = [None if here else inside(shape) for here, shape in zip(intra, table.shapes, strict=True)]
    limit = np.array([np.iinfo(np.int64).max if us is None else round(us) for us in limits])[table.shape]
    known = np.array([here or us is not None for here, us in zip(intra, limits, strict=True)])[table.shape]
    return np.minimum(transfer, limit), known


def _saved_by_step(row: IntArray, saved: IntArray, steps: int) -> IntArray:
    return np.asarray(np.maximum(_sum_by_step(row, saved, steps), 0))


def saved_of_each_us(rank: RankData, matched: RankCollectives, transfer: IntArray) -> IntArray:
    """The exposed microseconds that would be saved at the wait for each collective if all took `transfer`.

    Below 0 where a wait would be longer, as computation would come to it earlier.
    """
    table = matched.table
    saved = np.zeros(len(table), dtype=np.int64)
    ended = table.end_us != NEVER
    end = np.where(ended, table.end_us, table.ready_us)
    exposed = np.where(ended & (table.exposed_us != NEVER), table.exposed_us, 0)
    signature = rank.steps["signature"][table.row]
    for number in np.unique(rank.steps["signature"]):
        mine = np.flatnonzero(signature == number)
        if not len(mine):
            continue
        rows = table.row[mine][np.diff(table.row[mine], prepend=-1) > 0]  # they ascend
        grid = mine.reshape(len(rows), -1)
        group = [table.shapes[shape].group for shape in table.shape[grid[0]]]
        # The first collective of a group may find the queue busy with the previous step, which is not replayed.
        first = np.array([name not in group[:i] for i, name in enumerate(group)])
        ready = np.where(first, matched.start_us[grid], table.ready_us[grid])
        never = np.where(table.need_us[grid] == NEVER, True, ~ended[grid])
        saved[grid] = savings(ready, end[grid], np.where(never, NEVER, table.need_us[grid]), exposed[grid],
                              transfer[grid], group)  # fmt: skip
    return saved


def savings(
    ready: IntArray, end: IntArray, need: IntArray, exposed: IntArray, transfer: IntArray, group: list[str]
) -> IntArray:
    """The exposed time saved at the wait for each collective if every collective took its `transfer`.

    Arrays have one row per step and one column per collective, all in the same unit; `group` names each column's queue.
    """
    steps, count = ready.shape
    waited = np.minimum(exposed, np.maximum(end - ready, 0))  # nothing waits for a collective before it is issued
    need_at = np.where(waited > 0, end - waited, np.where(need == NEVER, NEVER, np.maximum(need, end)))
    order = np.argsort(np.concatenate([ready, need_at], axis=1), axis=1, kind="stable")
    queues = {name: number for number, name in enumerate(dict.fromkeys(group))}
    queue_of = np.array([queues[name] for name in group], dtype=np.int64)
    free = np.full((steps, len(queues)), np.iinfo(np.int64).min)
    new_end = np.zeros_like(ready)
    saved = np.zeros(steps, dtype=np.int64)
    by_need = np.zeros_like(ready)
    for event in order.T:
        step = np.flatnonzero(event < count)
        issued = event[step]
        queue = queue_of[issued]
        start = np.maximum(ready[step, issued] - saved[step], free[step, queue])
        new_end[step, issued] = free[step, queue] = start + transfer[step, issued]

        step = np.flatnonzero(event >= count)
        needed = event[step] - count
        wait = new_end[step, needed] - (need_at[step, needed] - saved[step])
        by_need[step, needed] = waited[step, needed] - np.maximum(wait, 0)
        saved[step] += by_need[step, needed]
    return by_need


def _sum_by_step(row: IntArray, values: IntArray | NDArray[np.bool_], steps: int) -> IntArray:
    return np.bincount(row, weights=values, minlength=steps).astype(np.int64)


def _reasons(matched: RankCollectives, exposed: IntArray, unclear: NDArray[np.bool_], on_device: bool) -> Counter[str]:
    """The exposed µs that cannot be split, by reason.

    `unclear`: a mask of collectives in steps with doubtful clocks.
    """
    table = matched.table
    reasons: Counter[str] = Counter()
    unsplit = (matched.transfer_us == MISSING) & (exposed > 0)
    for number, shape in enumerate(table.shapes):
        mine = unsplit & (table.shape == number)
        if why := _never_split(shape):
            reasons[why] += int(exposed[mine].sum())
            continue
        unmatched, endless = ~matched.matched, matched.duration_us == MISSING
        reasons["some ranks have no record of the same collective"] += int(exposed[mine & unmatched].sum())
        ended = mine & ~unmatched & ~endless
        if can_split(shape.op):  # the end is missing on some other rank
            endless |= ended
        else:
            apart = "only arrivals tell of {op}, and devices have no common clock" if on_device else _CLOCKS_UNKNOWN
            reasons[apart.format(op=shape.op)] += int(exposed[ended].sum())
        reasons[NO_END] += int(exposed[mine & ~unmatched & endless].sum())
    doubtful = unclear & (matched.doubt_us > 0)
    reasons["the clocks of the machines are not known well enough"] += int(exposed[doubtful].sum())
    return +reasons


def _never_split(shape: CollectiveShape) -> str:
    if ANY_SOURCE in shape.group:
        return "a receive from anybody does not say whose message it waits for"
    if not can_split(shape.op) and shape.root is None:
        return f"the root of {shape.op} is not recorded, and ranks do different work in it"
    return ""


class SizeSweeps:
    """A sweep for each operation that was timed. Other operations are scaled from the all-reduce.

    Points of fewer than two ranks are left out: nothing was transferred in them, so these lines are damaged.
    """

    def __init__(self, points: Sequence[Calibration]) -> None:
        points = [point for point in points if point.ranks > 1]
        self._of = {
            op: SizeSweep([point for point in points if point.op == op]) for op in {point.op for point in points}
        }

    def transfer_us(self, shape: CollectiveShape) -> float | None:
        """The microseconds that the collective would take if its ranks shared a machine; None without a sweep."""
        plain = shape.op.replace("_", "")
        sweep = next((of for op, of in self._of.items() if plain.startswith(op)), self._of.get("allreduce"))
        return sweep.transfer_us(shape) if sweep else None


class SizeSweep:
    """Durations of one operation by size, interpolated between sizes and scaled to other operations and groups."""

    def __init__(self, points: Sequence[Calibration]) -> None:
        """`points`: at least one, of one operation among two or more ranks."""
        self.ranks, self.op = points[0].ranks, points[0].op
        # Noise only adds time: the shortest duration of a size counts, and no transfer takes longer than a larger one.
        shortest = {point.bytes: point.duration_ns for point in sorted(points, key=lambda point: -point.duration_ns)}
        sizes = sorted(shortest)
        self._bytes = np.array(sizes, dtype=float)
        durations_us = np.array([shortest[size] / 1000 for size in sizes])
        self._us = np.minimum.accumulate(durations_us[::-1])[::-1]

    def transfer_us(self, shape: CollectiveShape) -> float:
        """The microseconds that the collective would take if its ranks shared a machine."""
        timed = bus_factor(self.op, self.ranks)
        wanted = bus_factor(shape.op, shape.ranks)
        rounds = wanted * shape.ranks / (timed * self.ranks)
        latency_us = float(self._us[0])
        return latency_us * rounds + (self._timed_us(shape.bytes) - latency_us) * wanted / timed

    def _timed_us(self, size: int) -> float:
        if size <= self._bytes[-1] or len(self._bytes) < 2:
            return float(np.interp(size, self._bytes, self._us))
        slope = (self._us[-1] - self._us[-2]) / (self._bytes[-1] - self._bytes[-2])
        return float(self._us[-1] + slope * (size - self._bytes[-1]))
