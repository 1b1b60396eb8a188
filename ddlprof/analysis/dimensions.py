"""Divides the communication of each step among the dimensions of the parallel layout.

A dimension's part is what its collectives exposed. What a step's communication has beyond that, such as the calls that
wait, belongs to all of them in proportion where it is little, and else to no known dimension; where a rank has one
dimension only, everything is of that. A dimension's straggler and network are what the replays of `stragglers` save at
its own waits. All parts are made to add up: those of the dimensions to the step's, and those of one dimension to its
communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.model.classes import COMM_PARTS
from ddlprof.model.dimensions import DIMENSIONS, PIPELINE, UNKNOWN, UNKNOWN_SHOWN, dimension_of
from ddlprof.model.records import MISSING, NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddlprof.store import CollectiveTable, IntArray, RankData

SHOWN = (*DIMENSIONS, UNKNOWN)
"""The dimensions in the order shown; the last one stands for groups of which none is known."""


def column_name(dimension: str, part: str = "") -> str:
    """The name of a dimension's communication, `comm_tensor`, or of a part of it, `comm_tensor_straggler`."""
    return f"comm_{dimension or UNKNOWN_SHOWN}{'_' if part else ''}{part}"


COLUMNS = tuple(column_name(dimension, part) for dimension in SHOWN for part in ("", *COMM_PARTS))
"""The names of all dimensions and of their parts, in the order shown."""


class OfDimensions:
    """The dimension of each collective of one rank, as an index into `SHOWN`."""

    def __init__(self, rank: RankData, table: CollectiveTable) -> None:
        known = {facts.dimension or facts.exchanges for facts in rank.groups.values()} - {UNKNOWN}
        self.are_known = bool(known)
        """Whether anything is known of the dimensions of this rank's groups."""
        of_shape = [SHOWN.index(dimension_of(shape, rank.groups)) for shape in table.shapes]
        self.of = np.array(of_shape or [0], dtype=np.int64)[table.shape]

    def sums(self, row: IntArray, values: IntArray, steps: int) -> IntArray:
        """The sums of `values` of collectives by step and dimension: a row for each step. `row`: the steps."""
        width = len(SHOWN)
        summed = np.bincount(row * width + self.of, weights=values, minlength=steps * width)
        return summed.astype(np.int64).reshape(steps, width)


def exposed_by_dimension(
    rank: RankData, table: CollectiveTable, of: OfDimensions, allowed: NDArray[np.float64]
) -> IntArray:
    """The nanoseconds of each step's communication by dimension, which add up to it; rows of MISSING if unknown.

    `allowed`: the nanoseconds of each step up to which what no collective exposed counts for all.
    """
    comm = rank.steps["comm_ns"]
    only = np.unique(of.of)
    if len(only) == 1 and SHOWN[only[0]] != UNKNOWN:
        parts = np.zeros((len(comm), len(SHOWN)), dtype=np.int64)
        parts[:, only[0]] = np.maximum(comm, 0)
        parts[comm == MISSING] = MISSING
        return parts
    exposed = 1000 * of.sums(table.row, np.where(table.exposed_us == NEVER, 0, table.exposed_us), len(comm))
    found = exposed.sum(axis=1)
    little = (comm - found <= allowed) & (found > 0)
    exposed[:, -1] += np.where(little, 0, np.maximum(comm - found, 0))
    parts = fitted(exposed, np.where(exposed > 0, comm[:, None], 0), np.maximum(comm, 0))
    lost = (comm > 0) & rank.untold if rank.untold is not None else False
    parts[(comm == MISSING) | lost] = MISSING
    return parts


def fitted(parts: IntArray, limits: IntArray, total: IntArray) -> IntArray:
    """Whole parts near these that add up to each row's `total`, none below 0 or above its limit.

    `total` is at most the sum of the limits. Where there is too little, it is added where there is room; too much is
    taken away in proportion.
    """
    parts = np.clip(parts, 0, limits)
    found = parts.sum(axis=1)
    # Too little: shares of what is there, if that is anything, then of the room that is left.
    grown = np.minimum(_scaled(parts, found, np.maximum(total, found)), limits)
    room = limits - grown
    grown = grown + _scaled(room, room.sum(axis=1), np.maximum(total - grown.sum(axis=1), 0))
    shrunk = _scaled(parts, found, np.minimum(total, found))
    fitting = np.where((found > total)[:, None], shrunk, grown)
    each = np.arange(len(fitting))
    for _ in range(parts.shape[1]):  # what rounding left
        left = total - fitting.sum(axis=1)
        room = limits - fitting
        most = np.argmax(np.where(left[:, None] < 0, fitting, room), axis=1)
        fitting[each, most] += np.clip(left, -fitting[each, most], room[each, most])
    return fitting


def _scaled(parts: IntArray, found: IntArray, wanted: IntArray) -> IntArray:
    """The parts in proportion, rounded down, so that they add up to `wanted` or a little less."""
    return np.floor(parts * (wanted / np.maximum(found, 1))[:, None]).astype(np.int64)


def columns_of(comm: IntArray, saved: Sequence[IntArray], known: Sequence[IntArray]) -> dict[str, IntArray]:
    """The columns of every dimension that has communication, by their names, in nanoseconds.

    `comm`: by step and dimension; `saved`: what lateness and the network cost, likewise, as the replays found it;
    `known`: the interconnect, network, straggler and bubble of all dimensions, MISSING where they are not known.
    """
    present = np.flatnonzero((comm > 0).any(axis=0))
    comm, untold = comm[:, present], dict(zip(COMM_PARTS, known, strict=True))
    if len(present) == 1:
        of_parts = {part: values[:, None] for part, values in untold.items()}
    else:
        limits = np.maximum(comm, 0)
        piped = limits * (present == SHOWN.index(PIPELINE))  # the bubble is where stages wait for each other
        bubble = fitted(piped, limits, np.maximum(untold["bubble"], 0))
        waits = fitted(saved[0][:, present] - bubble, limits - bubble, np.maximum(untold["straggler"], 0))
        between = fitted(saved[1][:, present], limits - bubble - waits, np.maximum(untold["network"], 0))
        rest = limits - bubble - waits - between
        of_parts = {"interconnect": rest, "network": between, "straggler": waits, "bubble": bubble}
    columns: dict[str, IntArray] = {}
    for place, number in enumerate(present.tolist()):
        columns[column_name(SHOWN[number])] = comm[:, place].copy()
        for part, values in of_parts.items():
            missing = (untold[part] == MISSING) | (comm[:, place] == MISSING)
            columns[column_name(SHOWN[number], part)] = np.where(missing, MISSING, values[:, place])
    return columns
