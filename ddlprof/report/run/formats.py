"""The formats of `ddlprof report`, by name: a new one is one file beside this and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ddlprof.analysis.run import Attempt
from ddlprof.report.run import card, json, trace
from ddlprof.report.run.data import ReportData, build_report
from ddlprof.report.run.page.render import render as page
from ddlprof.report.run.page.subject import Subject
from ddlprof.store import RunData


@dataclass(frozen=True)
class Analysed:
    """An analysed run, and what was asked of its report."""

    run: RunData
    attempts: Sequence[Attempt]
    now_unix_ns: int
    instance: str | None = None
    """The instance type whose price the report counts in."""
    steps: tuple[int | None, int | None] = (None, None)
    """The first step to show and the one after the last."""

    @cached_property
    def report(self) -> ReportData:
        """What the report says."""
        return build_report(self.run, self.attempts, self.now_unix_ns)


FORMATS: dict[str, Callable[[Analysed], Iterable[str]]] = {
    "table": lambda run: [card.render(run.report)],
    "json": lambda run: [json.render(run.report)],
    "html": lambda run: page(Subject(run.run, run.attempts, run.report, run.instance, run.steps)),
    "trace": lambda run: trace.render(run.run, run.attempts, run.steps),
}
"""The functions by format; each gives the text of a report in pieces, and ends with a line end."""
