"""Estimates the offsets between the unix clocks of machines from the collectives that their ranks took part in.

No rank can be through an all-reduce before the last one has issued it, so on one clock ready(a) <= end(b) for all
ranks a and b of a collective. On two clocks each collective thus bounds their offset from both sides; a broadcast or
a message does so from one. All of them together leave an interval: its middle is the estimate, half its width the
bound. Ranks of one machine have one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.records import DEVICE_CLOCK, NEVER

if TYPE_CHECKING:
    from ddlprof.analysis.collectives import RankCollectives
    from ddlprof.model.records import CollectiveShape
    from ddlprof.store import CollectiveTable, IntArray, RankData

RESOLUTION_NS = 1000  # recorded times are rounded down to microseconds

_SYMMETRIC = ("allreduce", "allgather", "reducescatter", "barrier")
"""Operations whose result depends on every rank's data. Parts of an all-to-all may be empty."""
FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")
DRIFT_SHARE = 20e-6  # NTP corrects most clocks by less: what was read before the training is that much older now
SAME_CLOCK_NS = 10**9
"""Differences below this are of one clock: unix clocks are adjusted by less while ranks start, and monotonic clocks of
two time namespaces differ by more."""
UNBOUNDED_NS = 2**61

Bounds: TypeAlias = tuple[int, int]
"""The smallest and the largest possible value of an offset, in ns."""


def on_device(ranks: Sequence[RankData]) -> bool:
    """Whether the steps of any of these ranks are timed by the clock of its device."""
    return any(rank.header.clock == DEVICE_CLOCK for rank in ranks)


@dataclass(frozen=True)
class ClockOffset:
    """The unix clock of a node minus that of rank 0's node."""

    offset_ns: int
    bound_ns: int
    """The largest distance of the true offset from `offset_ns`."""
    drift_ns: int = 0
    """The offset changed at least by this during the run, in ns. `bound_ns` then holds for the middle of the run
    only."""


@dataclass(frozen=True)
class _Extremes:
    """For each collective of a group, the last issue and the first end on a rank or on the ranks of a node."""

    seq: IntArray
    last_ready: IntArray
    first_end: IntArray


def clock_offsets(ranks: Sequence[RankData], matching: Sequence[RankCollectives]) -> dict[int, ClockOffset | None]:
    """The offset of each node's clock; None where no collective links a node to the first one, which has rank 0."""
    nodes = sorted({rank.node for rank in ranks})
    if len(nodes) < 2:
        return dict.fromkeys(nodes, ClockOffset(0, 0))
    origins = clock_origins(ranks)
    hubs: dict[str, tuple[int, _Extremes]] = {}
    bounds: dict[tuple[int, int], Bounds] = {}
    # In the order of the nodes: the first one of a group is the hub that the others are compared with.
    for index in sorted(range(len(ranks)), key=lambda i: ranks[i].node):
        rank = ranks[index]
        for group, own in _by_group(rank, matching[index], origins[rank.rank]):
            hub, extremes = hubs.setdefault(group, (rank.node, own))
            if rank.node == hub:
                hubs[group] = hub, _joined(extremes, own)
            else:
                pair = (hub, rank.node)
                bounds[pair] = _narrower(bounds.get(pair), _compare(extremes, own))
    for pair, found in _readings(ranks, origins):
        bounds[pair] = _narrower(bounds.get(pair), found)
    return _resolve(nodes, {pair: _offset(*found) for pair, found in bounds.items() if _bounded(*found)})


def clock_origins(ranks: Sequence[RankData], clocks: dict[int, ClockOffset | None] | None = None) -> dict[int, int]:
    """When each rank began, in ns on its machine's clock; with `clocks`, on that of rank 0's machine.

    The zero is arbitrary. Processes of a machine share its monotonic clock, which is used because the unix clock may
    have been set between the readings of two ranks.
    """
    first: dict[int, RankData] = {}
    origins: dict[int, int] = {}
    zero = min((rank.header.origin_unix_ns for rank in ranks), default=0)
    for rank in ranks:
        one = first.setdefault(rank.node, rank).header
        since = rank.header.origin_ns - one.origin_ns
        if abs(since - (rank.header.origin_unix_ns - one.origin_unix_ns)) > SAME_CLOCK_NS:  # another time namespace
            since = rank.header.origin_unix_ns - one.origin_unix_ns
        offset = clocks.get(rank.node) if clocks else None
        origins[rank.rank] = one.origin_unix_ns - zero + since - (offset.offset_ns if offset else 0)
    return origins


def _readings(ranks: Sequence[RankData], origins: dict[int, int]) -> Iterator[tuple[tuple[int, int], Bounds]]:
    """The clock readings from before the training; clocks kept by NTP may have drifted a little since."""
    by_rank = {rank.rank: rank for rank in ranks}
    until = max((rank.last_seen_unix_ns - rank.header.origin_unix_ns for rank in ranks), default=0)
    drift = int(DRIFT_SHARE * until)
    for rank in ranks:
        for reading in rank.clock_readings:
            other = by_rank.get(reading.rank)
            if other is None or other.node == rank.node:
                continue
            ahead = (origins[other.rank] - other.header.origin_ns) - (origins[rank.rank] - rank.header.origin_ns)
            yield (rank.node, other.node), (reading.least_ns + ahead - drift, reading.greatest_ns + ahead + drift)


def _bounded(least: int, greatest: int) -> bool:
    return least > -UNBOUNDED_NS // 2 and greatest < UNBOUNDED_NS // 2


def _by_group(rank: RankData, matched: RankCollectives, origin: int) -> Iterator[tuple[str, _Extremes]]:
    """For each group, what its collectives tell about the clock of the rank's node.

    On a device's timeline the ends of collectives are not known well enough.
    """
    if rank.header.clock == DEVICE_CLOCK:
        return
    table = matched.table
    start = origin + rank.steps["start_ns"][table.row]
    gives, takes = (_of_shape(table, partial(tells, rank.rank)) for tells in (_gives, _takes))
    telling = matched.matched & (table.end_us != NEVER) & (gives | takes)
    for group in dict.fromkeys(shape.group for shape in table.shapes):
        mine = np.flatnonzero(telling & _of_shape(table, partial(_is_of, group)))
        mine = mine[np.argsort(table.seq[mine], kind="stable")]
        ready, end = (start[mine] + 1000 * column[mine] for column in (table.ready_us, table.end_us))
        if len(mine):
            ready = np.where(gives[mine], ready, -UNBOUNDED_NS)
            yield group, _Extremes(table.seq[mine], ready, np.where(takes[mine], end + RESOLUTION_NS, UNBOUNDED_NS))


def _of_shape(table: CollectiveTable, holds: Callable[[CollectiveShape], bool]) -> NDArray[np.bool_]:
    return np.array([holds(shape) for shape in table.shapes] or [False])[table.shape]


def _is_of(group: str, shape: CollectiveShape) -> bool:
    return shape.group == group


def _gives(rank: int, shape: CollectiveShape) -> bool:
    """Whether this rank gives data. A rank that takes them cannot end before this rank has issued the collective."""
    if shape.root is None or not shape.bytes:
        return _symmetric(shape.op, shape.bytes)
    return shape.op == "send" or shape.op.startswith(FROM_ROOT if rank == shape.root else TO_ROOT)


def _takes(rank: int, shape: CollectiveShape) -> bool:
    """Whether this rank takes data. It cannot end before all ranks that give data have issued the collective."""
    if shape.root is None or not shape.bytes:
        return _symmetric(shape.op, shape.bytes)
    return shape.op == "recv" or shape.op.startswith(TO_ROOT if rank == shape.root else FROM_ROOT)


def _symmetric(op: str, size: int) -> bool:
    plain = op.replace("_", "")
    return plain.startswith(_SYMMETRIC) and (size > 0 or plain.startswith("barrier"))


def _common(one: _Extremes, two: _Extremes) -> tuple[IntArray, IntArray]:
    """The places at which each of two ranks has the collectives that both have."""
    if np.array_equal(one.seq, two.seq):
        everything = np.arange(len(one.seq))
        return everything, everything
    _, left, right = np.intersect1d(one.seq, two.seq, return_indices=True)
    return left, right


def _joined(one: _Extremes, two: _Extremes) -> _Extremes:
    """The extremes of two ranks of one node."""
    left, right = _common(one, two)
    return _Extremes(
        one.seq[left],
        np.maximum(one.last_ready[left], two.last_ready[right]),
        np.minimum(one.first_end[left], two.first_end[right]),
    )


def _compare(hub: _Extremes, own: _Extremes) -> Bounds:
    """The bounds for the clock of `own` minus the hub's, from the collectives that both took part in."""
    left, right = _common(hub, own)
    least = (own.last_ready[right] - hub.first_end[left]).max(initial=-UNBOUNDED_NS)
    greatest = (own.first_end[right] - hub.last_ready[left]).min(initial=UNBOUNDED_NS)
    return int(least), int(greatest)


def _narrower(one: Bounds | None, two: Bounds) -> Bounds:
    return two if one is None else (max(one[0], two[0]), min(one[1], two[1]))


def _offset(least: int, greatest: int) -> ClockOffset:
    middle = (least + greatest) // 2
    return ClockOffset(middle, abs(greatest - middle), max(least - greatest, 0))


def _resolve(nodes: list[int], pairs: dict[tuple[int, int], ClockOffset]) -> dict[int, ClockOffset | None]:
    """The offset of each node from the first one, summed along the links with the tightest bounds."""
    links = {**pairs, **{(b, a): replace(found, offset_ns=-found.offset_ns) for (a, b), found in pairs.items()}}
    known = {nodes[0]: ClockOffset(0, 0)}
    while True:
        reached = [(b, _sum(known[a], link)) for (a, b), link in links.items() if a in known and b not in known]
        if not reached:
            return {node: known.get(node) for node in nodes}
        node, offset = min(reached, key=lambda found: found[1].bound_ns)
        known[node] = offset


def _sum(one: ClockOffset, two: ClockOffset) -> ClockOffset:
    return ClockOffset(one.offset_ns + two.offset_ns, one.bound_ns + two.bound_ns, one.drift_ns + two.drift_ns)
