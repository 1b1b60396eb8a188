"""The page of a run, put together of the sections that the files beside this one make."""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.base.units import count, date_and_time, long_time
from ddlprof.report.hang import html as hang
from ddlprof.report.html.chart import short
from ddlprof.report.html.shell import Absent, Section, page
from ddlprof.report.run.html import about_run, attempts, communication, gains, machine, ranks, steps, verdict
from ddlprof.report.run.html.subject import Subject

_LONGEST_TITLE = 120
_UNKNOWN_HOST = "unknown"
"""The host name that an import gives to a trace without one."""


def render(subject: Subject) -> list[str]:
    """The page in pieces. Raises UserError for an unknown instance type."""
    rate = gains.rate_of(subject)
    traffic = communication.read_traffic(subject)
    sections: list[Section | Absent] = [
        *([hang.section(subject.report.hang)] if subject.report.hang else []),
        *([about_run.phases(subject)] if subject.report.phases else []),
        verdict.findings(subject),
        steps.over_time(subject),
        steps.loss_over_updates(subject),
        gains.at_best(subject),
        gains.in_money(subject, rate),
        ranks.over_time(subject),
        ranks.side_by_side(subject),
        communication.by_dimension(subject),
        communication.timeline(subject, traffic),
        communication.bandwidth(subject, traffic),
        machine.source_lines(subject),
        machine.over_time(subject),
        about_run.whole_job(subject),
        attempts.goodput(subject, rate),
        about_run.notes(subject),
        about_run.environment(subject),
        about_run.how_to_read(),
    ]
    return list(page(f"{short(subject.report.name, _LONGEST_TITLE)} · ddlprof", " · ".join(subtitle(subject)), [
        verdict.top(subject), about_run.files(subject),
    ], sections))  # fmt: skip


def subtitle(subject: Subject) -> Iterator[str]:
    """The model, the machines, the date and the duration of the run; unknown facts are left out."""
    report = subject.report
    if report.model:
        yield short(report.model, _LONGEST_TITLE)
    if report.ranks:
        yield f"{count(report.nodes, 'node')}, {count(report.world_size, 'rank')} on {short(report.device)}"
    hosts = {rank.host for rank in report.headline_ranks} - {"", _UNKNOWN_HOST}
    if hosts:
        yield f"{len(hosts):,} hosts" if len(hosts) > 1 else f"host {short(min(hosts))}"
    if report.strategy and report.strategy != "none":
        yield report.strategy.upper()
    yield count(report.steps, "step")
    if report.attempts > 1:
        yield f"attempt {report.attempt} of 0-{report.attempts - 1}"
    began = [rank.data.header.origin_unix_ns - (rank.data.header.age_ns or 0) for rank in subject.ranks]
    if began and (date := date_and_time(min(began))):
        yield date
    if report.job and report.job.wall_s:
        yield f"took {long_time(report.job.wall_s)}"
