"""The communication of the steady steps of each rank in a few numbers, and its bus bandwidth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.collectives import RankCollectives, bus_factor, can_split, is_message
from ddlprof.model.dimensions import base_group, dimension_of
from ddlprof.model.records import NEVER, is_all_to_all

if TYPE_CHECKING:
    from ddlprof.model.records import CollectiveShape, GroupFacts


@dataclass(frozen=True)
class RankTraffic:
    """The collectives of one rank's steady steps."""

    duration_us: Counter[str]
    """The time by operation, in µs."""
    transfer_us: int
    """The time of data transfer in µs, in collectives in which all ranks do the same and that could be split."""
    moved_bytes: float
    """The bytes on the busiest link during `transfer_us`."""
    scopes: frozenset[str]
    reductions: int
    """The number of collectives that add something up over the ranks, such as gradients."""
    reduced_bytes: int
    """The bytes in these collectives."""
    sizes: Counter[int] = field(default_factory=Counter)
    """The number of these collectives by size in bytes."""
    reductions_us: int = 0
    """The time of these collectives in µs; in the next field, the part that computing waited for."""
    reductions_exposed_us: int = 0
    alltoall_exposed_us: int = 0
    """The time of all-to-alls in µs that computing waited for."""
    shortest_us: float | None = None
    """The mean transfer in µs of the fastest kind of these collectives: mostly latency if some are small."""
    dimensions: dict[str, DimensionTraffic] = field(default_factory=dict)
    """The traffic by dimension of the layout, the unknown one among them; empty if none is known."""


@dataclass(frozen=True)
class DimensionTraffic:
    """The collectives of one or more ranks' steady steps along one dimension of the layout."""

    collectives: int = 0
    bytes: int = 0
    duration_us: int = 0
    transfer_us: int = 0
    """The time of data transfer in µs, and the bytes on the busiest link during it, as in `RankTraffic`."""
    moved_bytes: float = 0.0
    group_sizes: frozenset[int] = frozenset()
    """The numbers of ranks in the groups."""
    scopes: frozenset[str] = frozenset()

    @property
    def bus_gb_s(self) -> float | None:
        """Bus bandwidth while moving data; None where no transfer could be told from waiting."""
        return self.moved_bytes / self.transfer_us / 1000 if self.transfer_us else None

    def plus(self, other: DimensionTraffic) -> DimensionTraffic:
        """Both together."""
        return DimensionTraffic(
            self.collectives + other.collectives,
            self.bytes + other.bytes,
            self.duration_us + other.duration_us,
            self.transfer_us + other.transfer_us,
            self.moved_bytes + other.moved_bytes,
            self.group_sizes | other.group_sizes,
            self.scopes | other.scopes,
        )


@dataclass(frozen=True)
class CommTotals:
    """The communication of a steady step, as a mean over ranks and steps."""

    duration_ns: float
    bus_gb_s: float | None
    """Bus bandwidth while moving data; None where no transfer could be told from waiting."""
    ops: list[str]
    """The operations, the one that takes longest first."""
    reduced_bytes: float = 0.0
    """The bytes added up over the ranks, such as gradients."""
    alltoall_s: float | None = None
    """The seconds of all-to-alls that computing waited for; None: there are none."""


def rank_traffic(
    matched: RankCollectives, steady: NDArray[np.bool_], groups: Mapping[str, GroupFacts] | None = None
) -> RankTraffic:
    """The traffic of one rank, where `steady` is a mask over its steps. `groups`: the facts about its groups."""
    table = matched.table
    wanted = steady[table.row]
    duration_us: Counter[str] = Counter()
    transfer_us, moved_bytes, reductions_us, exposed_us, alltoall_us = 0, 0.0, 0, 0, 0
    sizes: Counter[int] = Counter()
    fastest: list[float] = []
    dimensions: dict[str, DimensionTraffic] = {}
    for number, shape in enumerate(table.shapes):
        mine = wanted & (table.shape == number)
        count, took_us = int(mine.sum()), int(np.maximum(matched.duration_us[mine], 0).sum())
        duration_us[shape.op] += took_us
        waited_us = int(np.where(table.exposed_us[mine] == NEVER, 0, table.exposed_us[mine]).sum())
        alltoall_us += waited_us if is_all_to_all(shape.op) else 0
        split = mine & (matched.transfer_us > 0) & can_split(shape.op)  # a root may end before its data are sent
        transferred_us = int(matched.transfer_us[split].sum())
        moved = int(split.sum()) * shape.bytes * bus_factor(shape.op, shape.ranks)
        transfer_us, moved_bytes = transfer_us + transferred_us, moved_bytes + moved
        if groups and count:
            dimension = dimension_of(shape, groups)
            sizes_of, scopes = _group_sizes(shape, groups), frozenset({matched.scopes[number]})
            more = DimensionTraffic(count, count * shape.bytes, took_us, transferred_us, moved, sizes_of, scopes)
            dimensions[dimension] = dimensions.get(dimension, DimensionTraffic()).plus(more)
        if _is_reduction(shape.op):
            sizes[shape.bytes] += count
            reductions_us += took_us
            exposed_us += waited_us
            fastest += [float(matched.transfer_us[split].mean())] if split.any() else []
    return RankTraffic(
        duration_us=duration_us,
        transfer_us=transfer_us,
        moved_bytes=moved_bytes,
        scopes=frozenset(matched.scopes),
        reductions=sizes.total(),
        reduced_bytes=sum(size * number for size, number in sizes.items()),
        sizes=sizes,
        reductions_us=reductions_us,
        reductions_exposed_us=exposed_us,
        alltoall_exposed_us=alltoall_us,
        shortest_us=min(fastest, default=None),
        dimensions=dimensions,
    )


def _group_sizes(shape: CollectiveShape, groups: Mapping[str, GroupFacts]) -> frozenset[int]:
    """The number of ranks in the group of a collective, which for a message is not that of the channel."""
    if not is_message(shape.op):
        return frozenset({shape.ranks})
    facts = groups.get(base_group(shape))
    return frozenset({facts.ranks}) if facts is not None and facts.ranks else frozenset()


def _is_reduction(op: str) -> bool:
    return op.replace("_", "").startswith(("allreduce", "reducescatter"))


def comm_totals(ranks: Sequence[RankTraffic], steps: int) -> CommTotals | None:
    """The totals of `steps` steady steps over all ranks; None if nothing was communicated."""
    duration_us = sum((rank.duration_us for rank in ranks), Counter[str]())
    if not steps or not any(rank.duration_us for rank in ranks):
        return None
    transfer_us = sum(rank.transfer_us for rank in ranks)
    return CommTotals(
        duration_ns=1000 * duration_us.total() / steps,
        bus_gb_s=sum(rank.moved_bytes for rank in ranks) / transfer_us / 1000 if transfer_us else None,
        ops=[op for op, _ in duration_us.most_common()],
        reduced_bytes=sum(rank.reduced_bytes for rank in ranks) / steps,
        alltoall_s=sum(rank.alltoall_exposed_us for rank in ranks) / steps / 1e6
        if any(map(is_all_to_all, duration_us))
        else None,
    )


@dataclass(frozen=True)
class Bandwidth:
    """Collectives of one kind and size. GB/s are bus bandwidths as nccl-tests defines them."""

    op: str
    scope: str
    """`intra` (one machine), `inter`, or empty where not known."""
    ranks: int
    bytes: int
    collectives: int
    median_gb_s: float
    low_gb_s: float
    """The 10th percentile."""
    high_gb_s: float
    """The 90th percentile."""


def transfers(
    matched: RankCollectives, steady: NDArray[np.bool_]
) -> Iterable[tuple[tuple[str, str, int, int], NDArray[np.float64]]]:
    """For each kind of collective of one rank, its bus bandwidths in GB/s. `steady`: a mask over the rank's steps."""
    table = matched.table
    usable = steady[table.row] & (matched.transfer_us > 0) & ~matched.in_doubt
    for number, shape in enumerate(table.shapes):
        moved = _moved(shape)
        if moved:
            mine = usable & (table.shape == number)
            if mine.any():
                key = (shape.op, matched.scopes[number], shape.ranks, shape.bytes)
                yield key, moved / (matched.transfer_us[mine] * 1e3)


def bandwidths(
    found: Iterable[tuple[tuple[str, str, int, int], NDArray[np.float64]]],
) -> list[Bandwidth]:
    """The bandwidths that `transfers` found on one or more ranks, by operation, scope, ranks and size."""
    of: defaultdict[tuple[str, str, int, int], list[NDArray[np.float64]]] = defaultdict(list)
    for key, values in found:
        of[key].append(values)
    rows = []
    for (op, scope, ranks, size), parts in sorted(of.items()):
        values = np.concatenate(parts)
        low, median, high = np.percentile(values, [10, 50, 90]).tolist()
        rows.append(Bandwidth(op, scope, ranks, size, len(values), median, low, high))
    return rows


def _moved(shape: CollectiveShape) -> float:
    return shape.bytes * bus_factor(shape.op, shape.ranks) * can_split(shape.op)
