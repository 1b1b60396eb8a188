"""The line below the title: what was trained, on what, where, when and for how long."""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.base.units import count, date_and_time, long_time
from ddlprof.report.html.chart import short
from ddlprof.report.run.page.subject import Subject

_LONGEST = 120
_UNKNOWN_HOST = "unknown"
"""What an import calls the host of a trace that names none."""


def subtitle(subject: Subject) -> str:
    """What is not known is left out."""
    return " · ".join(_parts(subject))


def _parts(subject: Subject) -> Iterator[str]:
    report = subject.report
    if report.model:
        yield short(report.model, _LONGEST)
    if report.ranks:
        yield f"{count(report.nodes, 'node')}, {count(report.world_size, 'rank')} on {short(report.device)}"
    hosts = {rank.host for rank in report.ranks if rank.attempt == report.attempt} - {"", _UNKNOWN_HOST}
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
