"""The bus bandwidth of the collectives of steady steps, against their size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.collectives import RankCollectives, bus_factor, can_split

if TYPE_CHECKING:
    from ddlprof.model.records import CollectiveShape


@dataclass(frozen=True)
class Bandwidth:
    """Collectives of one kind and size. GB/s as nccl-tests count them: bytes on the busiest link over the transfer."""

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
    """The bus bandwidths of each kind of collective, in GB/s, of one rank; `steady` is a mask over its steps."""
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
    """What `transfers` found on one or more ranks, by operation, scope, ranks and size."""
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
