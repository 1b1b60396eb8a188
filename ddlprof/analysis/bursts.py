"""Whether waits for data come in bursts between long rows of steps without any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import CALM_ROUNDS, WAITING_SHARE


@dataclass(frozen=True)
class Bursts:
    """The waits of the rank that waits longest for its data."""

    number: int
    longest_s: float
    """The whole wait of the longest burst."""
    calm_share: float
    """The share of the steps in rows so long that the workers must have kept up with them."""
    steps: int


def find_bursts(data_ns: NDArray[np.int64], ahead: int) -> Bursts | None:
    """The bursts of waiting in consecutive steps; `ahead` batches are held ready. None where nothing is waited for.

    Steps that wait belong to one burst if fewer than `ahead` steps without a wait are between them.
    """
    mean = data_ns.mean() if len(data_ns) else 0.0
    if mean <= 0:
        return None
    waiting = np.flatnonzero(data_ns > WAITING_SHARE * mean)
    cuts = np.flatnonzero(np.diff(waiting) > ahead) + 1
    bursts = np.split(waiting, cuts)
    edges = np.concatenate([[-1], waiting, [len(data_ns)]])
    rows = np.diff(edges) - 1
    return Bursts(
        number=len(bursts),
        longest_s=max(float(data_ns[burst].sum()) for burst in bursts) / 1e9,
        calm_share=float(rows[rows >= CALM_ROUNDS * ahead].sum()) / len(data_ns),
        steps=len(data_ns),
    )
