"""The section of the page about a job's attempts: its goodput, what failures cost, and how often it should save."""

from __future__ import annotations

from ddlprof.analysis.trials import trials_of
from ddlprof.base.units import figure, long_time, tenths_of_percent
from ddlprof.report.goodput.data import GoodputReport, goodput_report
from ddlprof.report.goodput.text import WORDS, ended, failures, headline, saving
from ddlprof.report.html.element import Content, Html, bullets, joined, table
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.gains import Rate
from ddlprof.report.run.html.subject import Subject

_KNOWN_BY = {
    "matched": "read its checkpoint",
    "told": "told by what it read",
    "last checkpoint": "assumed: the last checkpoint",
    "beginning": "the beginning",
}


def goodput(subject: Subject, rate: Rate | str) -> Section | Absent:
    """Where the time of all machines went over all attempts."""
    title = "All attempts of the job"
    if len(subject.attempts) < 2:
        return Absent(title, "the run has one attempt: ddlprof report --goodput RUN RUN... joins runs of one job")
    price = rate.price if isinstance(rate, Rate) else None
    report = goodput_report(subject.run.name, trials_of(subject.attempts), price)
    if report is None:
        return Absent(title, "no attempt left a step")
    said = [f"Goodput: {headline(report)}."]
    said += [f"Failures: {failures(report)}."] * bool(report.failures)
    said += [f"Saving: {saving(report.saving)}."] * bool(report.saving)
    said += [f"Assumed: {line}." for line in report.assumed]
    return Section("attempts", title, joined(bullets(said), _parts(report), _attempts(report)))


def _parts(report: GoodputReport) -> Html:
    rows: list[list[Content]] = [
        [
            WORDS[name],
            figure(hours),
            tenths_of_percent(hours / report.rank_hours) if report.rank_hours else None,
            None if (usd := report.parts_usd[name]) is None else figure(usd),
        ]
        for name, hours in report.parts_h.items()
    ]
    head = ["Time of all machines", report.unit, "Share", "USD"]
    return table("Where the time of all machines went, over all attempts", head, rows)


def _attempts(report: GoodputReport) -> Html:
    lost = {each.attempt: each for each in report.failures}
    rows: list[list[Content]] = []
    for each in report.attempts:
        failure = lost.get(each.attempt)
        rows.append([
            str(each.attempt), str(each.ranks), long_time(each.wall_s), f"{each.first_step:,}",
            _KNOWN_BY[each.known_by] if each.attempt and each.steps else "", f"{each.steps:,}", f"{each.repeated:,}",
            ended(each.status), figure(failure.lost_h) if failure else None,
        ])  # fmt: skip
    head = ["Attempt", "Ranks", "Took", "First step", "Known by", "Steps", "Done again", "Ended by", "Its end cost, h"]
    return table("The attempts", head, rows, left={0, 4, 7})
