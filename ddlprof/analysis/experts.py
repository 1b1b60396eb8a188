"""Mixtures of experts: how unevenly tokens are routed to the ranks that hold the experts.

In the all-to-all that dispatches tokens, ranks send about equally many and those with popular experts get more; in the
one that brings results back it is the other way round. So the uneven side of each all-to-all is that of the experts.
Experts of one rank count together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.experts import read_rows

if TYPE_CHECKING:
    from ddlprof.store import RankData


@dataclass(frozen=True)
class ExpertLoad:
    """The tokens of the ranks' experts, as means over the all-to-alls of the steps that were looked at."""

    imbalance: float
    """The tokens of the fullest rank over the mean of its group: 1 if all get equally many."""
    fullest: int
    """The rank that gets most on average."""
    fullest_share: float
    """How many times the mean it gets on average."""
    ranks: int
    """The ranks among which experts are divided."""
    steps: int


def expert_load(ranks: Sequence[RankData]) -> ExpertLoad | None:
    """The load of the experts; None without all-to-alls of uneven parts whose ranks all left a record."""
    found: dict[tuple[int, str], dict[int, tuple[int, NDArray[np.float64]]]] = defaultdict(dict)
    for rank in ranks:
        for routed in rank.routed:
            try:
                rows = np.array(read_rows(routed.rows), dtype=np.float64).reshape(-1, 2)
            except ValueError:  # a damaged line
                continue
            found[routed.step, routed.group][rank.rank] = routed.ranks, rows
    peaks: list[float] = []
    by_rank: dict[int, list[float]] = defaultdict(list)
    sizes: list[int] = []
    for of_group in found.values():
        wanted = {size for size, _ in of_group.values()}
        counts = {len(rows) for _, rows in of_group.values()}
        if len(counts) != 1 or wanted != {len(of_group)}:  # a rank has no record of the same collectives
            continue
        shares = _shares(np.stack([rows for _, rows in of_group.values()]))
        peaks += shares.max(axis=0).tolist()
        sizes.append(len(of_group))
        for number, share in zip(of_group, shares, strict=True):
            by_rank[number] += share.tolist()
    if not peaks:
        return None
    means = {number: float(np.mean(shares)) for number, shares in by_rank.items()}
    fullest = max(means, key=lambda number: (means[number], -number))
    steps = len({step for step, _ in found})
    return ExpertLoad(float(np.mean(peaks)), fullest, means[fullest], max(sizes), steps)


def _shares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each rank and all-to-all, its rows over the mean of the ranks, on the side where they differ more.

    `rows`: by rank, all-to-all and side (came, left).
    """
    means = np.maximum(rows.mean(axis=0, keepdims=True), 1.0)
    shares = rows / means
    uneven = shares.max(axis=0).argmax(axis=-1)
    return np.asarray(np.take_along_axis(shares, uneven[np.newaxis, :, np.newaxis], axis=2)[..., 0])
