"""Gives the ranks of an attempt the same strides.

Each rank keeps fewer steps once its own budget is spent, so ranks with more collectives begin earlier. What is compared
between ranks needs steps that all of them have: where another rank has a larger stride, steps of this one that are no
multiples of it go into its sums. Steps with a flag stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.records import Aggregate
from ddlprof.store.step_blocks import as_aggregates, merged
from ddlprof.store.tables import CollectiveTable, IntArray, RankData

_SUMMED = [f.name for f in fields(Aggregate)][2:]


def align_strides(ranks: Sequence[RankData]) -> None:
    """Changes ranks of one run so that those of each attempt have the same strides."""
    for attempt in {rank.attempt for rank in ranks if rank.strides}:
        together = [rank for rank in ranks if rank.attempt == attempt]
        changes = sorted(
            {stride for rank in together for stride in rank.strides}, key=lambda s: (s.first_step, s.stride)
        )
        begins = np.array([each.first_step for each in changes], dtype=np.int64)
        largest = np.maximum.accumulate(np.array([1, *(each.stride for each in changes)], dtype=np.int64))
        for rank in together:
            number = rank.steps["step"]
            stride = largest[np.searchsorted(begins, number, side="right")]
            kept = (number % stride == 0) | (rank.steps["flags"] != 0)
            if not kept.all():
                _sum_up(rank, kept)


def _sum_up(rank: RankData, kept: NDArray[np.bool_]) -> None:
    left_out = rank.steps.only(~kept)
    one = np.ones(len(left_out), dtype=np.int64)
    rows = np.stack([left_out["step"], one, *(left_out[name] for name in _SUMMED)], axis=1)
    last_step = int(rank.steps["step"][-1])
    rank.aggregates = sorted([*rank.aggregates, *as_aggregates(merged(rows, last_step))], key=lambda a: a.first_step)
    rank.steps = rank.steps.only(kept)
    rank.untold = None if rank.untold is None else rank.untold[kept]
    whole, place = rank.expand, np.cumsum(kept) - 1
    rank.expand = lambda: _only(whole(), kept, place)


def _only(table: CollectiveTable, kept: NDArray[np.bool_], place: IntArray) -> CollectiveTable:
    rows = kept[table.row]
    columns = {f.name: getattr(table, f.name)[rows] for f in fields(table) if f.name != "shapes"}
    return replace(table, **{**columns, "row": place[columns["row"]]})
