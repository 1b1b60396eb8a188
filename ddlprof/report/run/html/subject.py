"""The run that a page is about, and the names, scales and colours that its sections share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddlprof.analysis.run import Attempt, RankAnalysis, headline_attempt
from ddlprof.base.units import Scale, percent, scale_for
from ddlprof.model.classes import TABLE, terms_of
from ddlprof.report.html.element import Html, tag
from ddlprof.report.run.data import ReportData
from ddlprof.store import IntArray, RunData

NAMES = {each.name: each.name for each in TABLE} | {
    part: f"{each.name}: {each.short(part)}" if part.startswith(each.name) else part
    for each in TABLE
    for part in each.part_names
}
"""The name of a class, or of a part of one, on the page."""


@dataclass(frozen=True)
class Subject:
    """An analysed run, and the options of its page."""

    run: RunData
    attempts: Sequence[Attempt]
    report: ReportData
    instance: str | None = None
    """The instance type whose price is used; None: the run's own, where it is known."""
    window: tuple[int | None, int | None] = (None, None)
    """The first step to draw and the one after the last."""

    @cached_property
    def headline(self) -> Attempt | None:
        """The attempt that the page is about."""
        return headline_attempt(self.attempts)

    @property
    def ranks(self) -> list[RankAnalysis]:
        """The ranks of that attempt."""
        return self.headline.ranks if self.headline else []

    @property
    def steps(self) -> IntArray:
        """The numbers of all its steps, ascending."""
        return self.headline.window.steps if self.headline else np.zeros(0, dtype=np.int64)

    @property
    def step_s(self) -> float | None:
        """The mean steady step; None where there is no steady step."""
        return self.report.step_s

    @cached_property
    def scale(self) -> Scale:
        """The unit that all times of the page share."""
        return scale_for(self.step_s or 0.0)

    def mean_s(self, name: str) -> float | None:
        """The mean of a class; None: not measured."""
        line = self.report.times.get(name)
        return line.mean_s if line else None

    def time(self, seconds: float | None) -> str | None:
        """A time in that unit; None: not measured."""
        return None if seconds is None else self.scale.time(seconds)

    def share(self, seconds: float | None) -> str | None:
        """A time as a share of the mean step."""
        return percent(seconds / self.step_s) if seconds is not None and self.step_s else None

    @cached_property
    def terms(self) -> list[str]:
        """The classes that add up to the step, with the parts of those that the card shows by their parts."""
        return terms_of(lambda name: self.mean_s(name) is not None)


def swatch(name: str) -> Html:
    """The colour of a class."""
    return tag("span", class_="swatch", style=f"background:var(--class-{name.replace('_', '-')})", aria_hidden="true")
