"""The page of `ddlprof learn`: errors of predictions of jobs left out, before and after, and the runs not used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ddlprof.base.text import text_of, without_credentials
from ddlprof.base.units import count, percent
from ddlprof.extensions.learn.judge import Lesson
from ddlprof.recommender.learned import LearnedError, learned_text
from ddlprof.report.text import aligned, labelled

_labelled = partial(labelled, width=110)
_NAMES = {
    "computation": "computation of {of}",
    "communication": "steps over GPUs of {of}, computation known",
    "step": "whole steps, nothing measured",
}
_MOST_UNUSED = 20


@dataclass(frozen=True)
class Learning:
    """What the runs of a folder taught."""

    folder: str
    lesson: Lesson
    used: int
    """The runs that were learned from."""
    unused: tuple[tuple[str, str], ...]
    """The other runs by their path, each with the reason."""
    left_out: tuple[str, ...]
    """What was not searched, one line each."""


def render(found: Learning) -> str:
    """The page."""
    return text_of(_lines(found))


def as_json(found: Learning) -> str:
    """The file for `--learned`."""
    if found.lesson.learned is None:
        raise ValueError("nothing was learned")
    return learned_text(found.lesson.learned)


def in_a_line(found: Learning) -> str:
    """The most important of the page, for whoever asked for the file only."""
    whole = [row for row in found.lesson.errors if row.what == "step"] or list(found.lesson.errors)
    errors = f", {percent(whole[0].before)} off before and {percent(whole[0].after)} after" if whole else ""
    not_used = f"; {count(len(found.unused), 'run')} not used: -o - shows why" if found.unused else ""
    jobs = whole[0].jobs if whole else 0
    return f"learned from {count(found.used, 'run')}: {count(jobs, 'job')} left out in turn{errors}{not_used}"


def _lines(found: Learning) -> Iterator[str]:
    lesson = found.lesson
    jobs = len(lesson.learned.sources) if lesson.learned else None
    of_jobs = f" of {count(jobs, 'job')}" if jobs else ""
    yield from _labelled("Learned", f"from {count(found.used, 'run')}{of_jobs} in {without_credentials(found.folder)}")
    if lesson.errors:
        yield ""
        yield from _errors(lesson.errors)
        yield ""
        yield from _labelled(
            "Errors",
            "mean over jobs of the mean relative error; every job is predicted by what was learned without it, as if"
            " nothing of it had been measured",
        )
    if lesson.learned is None:
        yield from _labelled("Nothing", f"is learned and no file is written: {lesson.why_not}")
    else:
        yield from _labelled(
            "Use",
            "give the file to ddlprof predict, recommend, plan, elastic and cluster with --learned, or put it as"
            " learned.json into your own layer of the catalogue",
        )
    yield from _not_used(found)


def _errors(rows: tuple[LearnedError, ...]) -> list[str]:
    table = [["what", "jobs", "steps", "before", "after", ""]]
    for row in rows:
        said = "" if row.used else "one job only: not used" if row.jobs == 1 else "not better: not used"
        if row.what == "step" and row.after <= row.before:
            said = ""
        name = _NAMES[row.what].format(of=row.of)
        table.append([name, str(row.jobs), f"{row.points:,}", percent(row.before), percent(row.after), said])
    return aligned(table, right=(1, 2, 3, 4))


def _not_used(found: Learning) -> Iterator[str]:
    shown = [f"{without_credentials(path)}: {reason}" for path, reason in found.unused[:_MOST_UNUSED]]
    more = len(found.unused) - len(shown)
    if more:
        shown.append(f"and {count(more, 'other run')}")
    yield from _labelled("Not used", *shown, *found.left_out, indent=9)
