"""The page of a run, put together."""

from __future__ import annotations

from ddlprof.report.html.chart import short
from ddlprof.report.html.shell import Absent, Section, page
from ddlprof.report.run.page import communication, facts_of_run, gains, loss, machine, ranks, steps, verdict
from ddlprof.report.run.page.subject import Subject
from ddlprof.report.run.page.subtitle import subtitle

_LONGEST_TITLE = 120


def render(subject: Subject) -> list[str]:
    """The page in pieces. Raises UserError for an instance type that nobody knows."""
    rate = gains.rate_of(subject)
    traffic = communication.read_traffic(subject)
    sections: list[Section | Absent] = [
        verdict.findings(subject),
        steps.over_time(subject),
        loss.over_updates(subject),
        gains.at_best(subject),
        gains.in_money(subject, rate),
        ranks.over_time(subject),
        ranks.side_by_side(subject),
        communication.timeline(subject, traffic),
        communication.bandwidth(subject, traffic),
        machine.source_lines(subject),
        machine.over_time(subject),
        facts_of_run.whole_job(subject),
        facts_of_run.notes(subject),
        facts_of_run.environment(subject),
        facts_of_run.how_to_read(),
    ]
    return list(page(f"{short(subject.report.name, _LONGEST_TITLE)} · ddlprof", subtitle(subject), [
        verdict.top(subject), facts_of_run.files(subject),
    ], sections))  # fmt: skip
