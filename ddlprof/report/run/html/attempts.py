"""The section of the page about a job's attempts: its goodput, what failures cost, and how often it should save."""

from __future__ import annotations

from ddlprof.analysis.trials import trials_of
from ddlprof.base.units import long_time, tenths_of_percent
from ddlprof.report.goodput.data import AttemptLine, GoodputReport, goodput_report
from ddlprof.report.goodput.text import WORDS, ended, failures, headline, saving
from ddlprof.report.html.element import Html, bullets, joined
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.gains import RunPrice
from ddlprof.report.run.html.subject import Subject
from ddlprof.report.table import Column, Table

_KNOWN_BY = {
    "matched": "read its checkpoint",
    "told": "told by what it read",
    "last checkpoint": "assumed: the last checkpoint",
    "beginning": "the beginning",
}


def goodput(subject: Subject, rate: RunPrice | str) -> Section | Absent:
    """Where the time of all machines went over all attempts."""
    title = "All attempts of the job"
    if len(subject.attempts) < 2:
        return Absent(title, "the run has one attempt: ddlprof report --goodput RUN RUN... joins runs of one job")
    price = rate.price if isinstance(rate, RunPrice) else None
    report = goodput_report(subject.run.name, trials_of(subject.attempts), price)
    if report is None:
        return Absent(title, "no attempt left a step")
    said = [f"Goodput: {headline(report)}."]
    said += [f"Failures: {failures(report)}."] * bool(report.failures)
    said += [f"Saving: {saving(report.saving)}."] * bool(report.saving)
    said += [f"Assumed: {line}." for line in report.assumed]
    return Section("attempts", title, joined(bullets(said), _parts(report), _attempts(report)))


def _parts(report: GoodputReport) -> Html:
    def share(name: str) -> str | None:
        return tenths_of_percent(report.parts_h[name] / report.rank_hours) if report.rank_hours else None

    parts = Table[str](
        Column("Time of all machines", lambda name: WORDS[name], words=True),
        Column(report.unit, lambda name: report.parts_h[name]),
        Column("Share", share),
        Column("USD", lambda name: report.parts_usd[name]),
    )
    return parts.html("Where the time of all machines went, over all attempts", report.parts_h)


def _attempts(report: GoodputReport) -> Html:
    lost = {each.attempt: each.lost_h for each in report.failures}
    attempts = Table[AttemptLine](
        Column("Attempt", "attempt", words=True),
        Column("Ranks", "ranks"),
        Column("Took", lambda each: long_time(each.wall_s)),
        Column("First step", "first_step"),
        Column("Known by", lambda each: _KNOWN_BY[each.known_by] if each.attempt and each.steps else "", words=True),
        Column("Steps", "steps"),
        Column("Done again", "repeated"),
        Column("Ended by", lambda each: ended(each.status), words=True),
        Column("Its end cost, h", lambda each: lost.get(each.attempt)),
    )
    return attempts.html("The attempts", report.attempts)
