"""The code that the loggers share: the steps of a run as scalars, a point for every so many steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.base.errors import UserError
from ddlprof.model.classes import TIMES

if TYPE_CHECKING:
    from ddlprof.api import Run

PREFIX = "ddlprof/"
EVERY = 10
"""How many steps make a point by default."""


class StepMeans(NamedTuple):
    """The means over some steps of all ranks."""

    step: int
    """The number of the last of these steps."""
    unix_s: float
    """When that step began, on the clock of rank 0."""
    values: dict[str, float]
    """Seconds by `ddlprof/NAME_s`; classes that were not measured are absent."""


def points(run: Run, every: int) -> Iterator[StepMeans]:
    """The points of the attempt with most steps, in order. Raises `UserError` if no step was measured."""
    if every < 1:
        raise UserError(f"every={every}: give the number of steps in a point, 1 or more")
    table = run.steps
    if not len(table):
        raise UserError(f"{run!r}: no step was measured")
    table = table[table["attempt"] == table["attempt"].mode().max()]
    manifest = run.manifest
    origin_s = manifest.origin_unix_ns / 1e9 if manifest else 0.0
    names = [f"{name}_s" for name in TIMES]
    groups = table.groupby(table["step"] // every)
    means, last, start = groups[names].mean(), groups["step"].max(), groups["start_s"].max()
    for number, row in means.iterrows():
        values = {PREFIX + name: float(row[name]) for name in names if row[name] == row[name]}
        yield StepMeans(int(last[number]), origin_s + float(start[number]), values)
