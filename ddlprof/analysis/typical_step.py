"""Finds a steady step that is like the mean step, and what was communicated in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.model.records import MISSING, NEVER

if TYPE_CHECKING:
    from ddlprof.analysis.collectives import RankCollectives
    from ddlprof.analysis.run import RankAnalysis


@dataclass(frozen=True)
class CollectiveSpan:
    """One collective in a step. Times are microseconds since the start of the step; None: not known."""

    op: str
    bytes: int
    scope: str
    ready_us: int
    """When this rank issued it."""
    start_us: int
    """When it began: after it was issued and its group's earlier communication had ended."""
    duration_us: int | None
    transfer_us: int | None
    """The part of the duration in which data moved. Before it, the collective waited for a later rank."""
    exposed_us: int
    """How long computing waited for it, up to its end."""


def typical_step(ranks: Sequence[RankAnalysis], window: tuple[int | None, int | None] = (None, None)) -> int | None:
    """The number of the steady step whose mean over the ranks is nearest to the mean step; None without steady steps.

    Only steps count of which all ranks have a row, from `window[0]` to before `window[1]`.
    """
    steady = [rank.times.steady for rank in ranks]
    numbers = np.concatenate([*(r.times.step[s] for r, s in zip(ranks, steady, strict=True)), np.zeros(0, np.int64)])
    values = np.concatenate([*(r.times.times["step"][s] for r, s in zip(ranks, steady, strict=True)), np.zeros(0)])
    steps, index, present = np.unique(numbers, return_inverse=True, return_counts=True)
    if not len(steps):
        return None
    means = np.bincount(index, weights=values) / present
    first, end = window
    usable = (present == present.max()) & (steps >= (first or 0))
    usable &= steps < (end if end is not None else np.iinfo(np.int64).max)
    if not usable.any():
        return None
    away = np.where(usable, np.abs(means - values.mean()), np.inf)
    return int(steps[np.argmin(away)])


def spans(matched: RankCollectives, row: int) -> list[CollectiveSpan]:
    """The collectives of one row of the rank's steps, in the order of issue."""
    table = matched.table
    mine = np.flatnonzero(table.row == row)
    found = []
    for at in mine.tolist():
        shape = table.shapes[table.shape[at]]
        transfer = int(matched.transfer_us[at])
        unknown = transfer == MISSING or bool(matched.in_doubt[at])
        exposed = int(table.exposed_us[at])
        duration = int(matched.duration_us[at])
        found.append(
            CollectiveSpan(
                op=shape.op,
                bytes=shape.bytes,
                scope=matched.scopes[table.shape[at]],
                ready_us=int(table.ready_us[at]),
                start_us=int(matched.start_us[at]),
                duration_us=None if duration == MISSING else duration,
                transfer_us=None if unknown else transfer,
                exposed_us=0 if exposed == NEVER else exposed,
            )
        )
    return found
