"""The goodput of a job as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import count, duration, figure, long_time, percent, tenths_of_percent
from ddlprof.report.goodput.data import FailureLine, GoodputReport, Saving
from ddlprof.report.text import aligned, labelled

_labelled = partial(labelled, width=100, indent=10)
WORDS = {
    "new_steps": "new steps", "repeated_steps": "steps done again", "checkpoint": "checkpoints",
    "evaluation": "evaluation", "start_up": "start-up and compilation", "waiting": "waiting to restart",
    "hang": "hangs", "idle": "idle",
}  # fmt: skip
"""What the parts are called."""
_MOST_FAILURES = 12
_LEAST_SHARE = 0.0005


def render(report: GoodputReport) -> str:
    """The page, ending with a line end."""
    attempts = count(len(report.attempts), "attempt")
    lines = [f"ddlprof  goodput of {report.job} · {attempts}, {long_time(report.wall_s)} in all", ""]
    lines += _labelled("Goodput", headline(report))
    rows = [["TIME OF ALL MACHINES", "HOURS", "SHARE", "USD"]]
    for name, hours in report.parts_h.items():
        share = hours / report.rank_hours if report.rank_hours else 0.0
        rows.append([WORDS[name], figure(hours), tenths_of_percent(share), figure(report.parts_usd[name])])
    lines += ["", *aligned(rows, right={1, 2, 3}), ""]
    lines += _failures(report.failures)
    for label, text in (("Failures", failures(report)), ("Saving", saving(report.saving))):
        if text:
            lines += _labelled(label, text)
    lines += _labelled("Assumed", *report.assumed) if report.assumed else []
    return text_of(lines)


def headline(report: GoodputReport) -> str:
    """`71 % of 3.2 GPU-hours (12 USD), in 1,200 new steps`."""
    share = "not known" if report.goodput is None else percent(report.goodput)
    cost = "" if report.usd is None else f" ({figure(report.usd)} USD)"
    return f"{share} of {figure(report.rank_hours)} {report.unit}{cost}, in {count(report.new_steps, 'new step')}"


def _failures(found: list[FailureLine]) -> list[str]:
    if not found:
        return []
    rows = [["ATTEMPT", "ENDED BY", "HANG h", "WAITING h", "START-UP h", "REDONE h", "LOST h", "USD"]]
    for each in found[:_MOST_FAILURES]:
        parts = (each.hang_h, each.waiting_h, each.start_up_h, each.repeated_h, each.lost_h)
        rows.append([str(each.attempt), ended(each.status), *map(figure, parts), figure(each.lost_usd)])
    more = [f"and {len(found) - _MOST_FAILURES} more (--format json)"] if len(found) > _MOST_FAILURES else []
    return [*aligned(rows, right=range(2, 8)), *more, ""]


def ended(status: str) -> str:
    """How an attempt ended, in a word."""
    return {"torn": "no word"}.get(status, status)


def failures(report: GoodputReport) -> str:
    """`3 cost 0.4 GPU-hours (2 USD), 12 % of all`; empty where nothing failed."""
    if not report.failures:
        return ""
    usd = "" if report.lost_to_failures_usd is None else f" ({figure(report.lost_to_failures_usd)} USD)"
    share = report.lost_to_failures_h / report.rank_hours if report.rank_hours else 0.0
    return (
        f"{len(report.failures)} cost {figure(report.lost_to_failures_h)} {report.unit}{usd}, {percent(share)} of all"
    )


def saving(found: Saving | None) -> str:
    """How often the job saves, and which interval would cost least."""
    if found is None:
        return ""
    steps = max(found.every_steps * found.daly_s / found.every_s, 1)
    return (
        f"a checkpoint takes {duration(found.checkpoint_s)} and comes every {duration(found.every_s)}"
        f" ({found.every_steps:,.0f} steps); with a failure every {duration(found.failure_every_s)} of running, one"
        f" every {duration(found.daly_s)} ({steps:,.0f} steps) would cost least by Daly's formula"
        f" (Young's: {duration(found.young_s)}): {percent(found.daly_lost_share)} of the time lost to checkpoints and"
        f" failures, at the present interval {percent(found.lost_share)}"
    )


def card_lines(report: GoodputReport) -> Iterator[tuple[str, str]]:
    """The lines of a run's card: a label and a text each."""
    shares = {name: hours / report.rank_hours for name, hours in report.parts_h.items() if report.rank_hours}
    large = sorted((name for name in shares if shares[name] >= _LEAST_SHARE), key=lambda name: -shares[name])
    parts = ", ".join(f"{WORDS[name]} {percent(shares[name])}" for name in large)
    yield "Goodput", f"{headline(report)}: {parts}"
    if said := failures(report):
        yield "Failures", said
