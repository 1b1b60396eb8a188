"""Whether waits for data come in bursts between long rows of steps without any."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import CALM_ROUNDS


@dataclass(frozen=True)
class Bursts:
    """The waits of the rank that waits longest for its data."""

    number: int
    longest_s: float
    """The whole wait of the longest burst."""
    calm_share: float
    """The share of the steps in rows without a burst, so long that the workers must have kept up with them."""
    calm_wait_share: float
    """The mean wait of such a step, as a share of the mean of all."""
    steps: int


def find_bursts(data_ns: NDArray[np.int64], ahead: int) -> Bursts | None:
    """The bursts of waiting in consecutive steps; `ahead` batches are held ready. None where nothing is waited for.

    A step waits if it waits longer than the mean. Such steps are one burst if at most `ahead` others are between them.
    """
    mean = data_ns.mean() if len(data_ns) else 0.0
    if mean <= 0 or data_ns.min() == data_ns.max():
        return None
    waiting = np.flatnonzero(data_ns > mean)
    cuts = np.flatnonzero(np.diff(waiting) > ahead) + 1
    bursts = np.split(waiting, cuts)
    edges = np.concatenate([[-1], waiting, [len(data_ns)]])
    rows = [slice(first + 1, last) for first, last in itertools.pairwise(edges)]
    calm = [data_ns[row] for row in rows if row.stop - row.start >= CALM_ROUNDS * ahead]
    calm_ns = np.concatenate([*calm, np.zeros(0, dtype=np.int64)])
    return Bursts(
        number=len(bursts),
        longest_s=max(float(data_ns[burst].sum()) for burst in bursts) / 1e9,
        calm_share=len(calm_ns) / len(data_ns),
        calm_wait_share=float(calm_ns.mean() / mean) if len(calm_ns) else 1.0,
        steps=len(data_ns),
    )
