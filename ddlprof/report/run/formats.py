"""The formats of `ddlprof report`, by name: a new one is one file beside this, one function and one line here.

Each is imported when it is asked for: the card of a run does not wait for the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.report.run.data import ReportData
    from ddlprof.store import RunData


@dataclass(frozen=True)
class Analysed:
    """An analysed run, and the options of its report."""

    run: RunData
    attempts: Sequence[Attempt]
    now_unix_ns: int
    instance: str | None = None
    """The instance type whose price the report uses."""
    steps: tuple[int | None, int | None] = (None, None)
    """The first step to show and the one after the last."""
    carbon_g_per_kwh: float | None = None
    """The grams of CO2 of a kWh where the run was."""

    @cached_property
    def report(self) -> ReportData:
        """The contents of the report as plain data."""
        from ddlprof.report.run.data import build_report

        return build_report(self.run, self.attempts, self.now_unix_ns, self.carbon_g_per_kwh)


def _table(run: Analysed) -> Iterable[str]:
    from ddlprof.report.run import text

    return [text.render(run.report)]


def as_json(report: ReportData) -> str:
    """The fields of the report, null for what was not measured."""
    from ddlprof.report.json_csv import json_text

    fields = asdict(report)
    if not report.phases:
        del fields["phases"], fields["phase"]
    return json_text(fields)


def _html(run: Analysed) -> Iterable[str]:
    from ddlprof.report.run.html.page import render
    from ddlprof.report.run.html.subject import Subject

    return render(Subject(run.run, run.attempts, run.report, run.instance, run.steps))


def _trace(run: Analysed) -> Iterable[str]:
    from ddlprof.report.run import trace

    return trace.render(run.run, run.attempts, run.steps)


FORMATS: dict[str, Callable[[Analysed], Iterable[str]]] = {
    "table": _table,
    "json": lambda run: [as_json(run.report)],
    "html": _html,
    "trace": _trace,
}
"""The functions by format; each gives the text of a report in pieces, and ends with a line end."""
