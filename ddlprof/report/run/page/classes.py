"""The mean step, class by class."""

from __future__ import annotations

from ddlprof.base.units import percent
from ddlprof.model.classes import TABLE, TIMES
from ddlprof.report.html.chart import chart
from ddlprof.report.html.element import Content, Html, joined, tag
from ddlprof.report.html.table import table
from ddlprof.report.run.page.subject import NAMES, Subject

_WORDS = {
    "step": "the whole step",
    "compute": "forward, loss, backward, clipping and the optimizer",
    "data": "the loop waits for its next batch",
    "data_fetch": "of it, blocked on storage or network",
    "data_prep": "of it, decoding, transforming, collating",
    "h2d": "computing waits for copies to the device",
    "comm": "communication that computing waits for",
    "interconnect": "what would remain if all ranks sat in one machine",
    "network": "the price of having gone over the network",
    "straggler": "waiting for a later rank to arrive",
    "other": "the rest: logging, checkpoints, evaluation, host gaps",
    "rollout": "of it, the model acts or generates for its training, with what goes on between",
}
"""What each class means, in a few words."""


def mean_step(subject: Subject) -> Html:
    """The mean step as one bar, and as a table."""
    parts = [
        {"name": name, "label": NAMES[name], "value": _number(subject, name), "parts": _parts(subject, name)}
        for name in subject.terms
        if subject.mean_s(name)
    ]
    unmeasured = [each.name for each in TABLE if subject.mean_s(each.name) is None]
    missing = f" Not measured, and so in the other classes: {', '.join(unmeasured)}." if unmeasured else ""
    return chart(
        "mean",
        "mean",
        {"unit": subject.scale.unit, "step": _number(subject, "step"), "parts": parts},
        caption=f"Where the mean step goes. The classes add up to {subject.time(subject.step_s)}.{missing}",
        alt=f"One bar, the mean step of {subject.time(subject.step_s)}: {in_words(subject)}.",
        table=class_table(subject),
        height=170,
    )


def in_words(subject: Subject) -> str:
    """`compute 50.9 ms (72 %), data ...`: the classes of the mean step."""
    terms = [(name, mean) for name in subject.terms if (mean := subject.mean_s(name))]
    return ", ".join(f"{NAMES[name]} {subject.time(mean)} ({subject.share(mean)})" for name, mean in terms)


def class_table(subject: Subject) -> Html:
    """Every class and part with its mean, its share and its spread."""
    rows: list[list[Content]] = []
    for name in TIMES:
        line = subject.report.times[name]
        error = subject.time(line.standard_error_s)
        rows.append(
            [
                joined(swatch(name), NAMES.get(name, name)),
                _WORDS.get(name, ""),
                subject.time(line.mean_s),
                percent(line.share) if line.share is not None else None,
                f"± {error}" if error is not None else None,
                subject.time(line.median_s),
                subject.time(line.p95_s),
            ]
        )
    head = ["Class", "Meaning", "Mean", "Share", "Standard error", "Median", "95th percentile"]
    return table("The classes of a step, over the steady steps of all ranks", head, rows, left={0, 1})


def swatch(name: str) -> Html:
    """The colour of a class."""
    return tag("span", class_="swatch", style=f"background:var(--class-{name.replace('_', '-')})", aria_hidden="true")


def _number(subject: Subject, name: str) -> float:
    return round((subject.mean_s(name) or 0.0) * subject.scale.per_second, 4)


def _parts(subject: Subject, name: str) -> list[dict[str, object]]:
    """The parts of a class that is drawn whole."""
    each = next((c for c in TABLE if c.name == name), None)
    known = [part for part in each.part_names if subject.mean_s(part) is not None] if each else []
    if not any(subject.mean_s(part) for part in known):
        return []
    return [{"name": part, "label": NAMES[part], "value": _number(subject, part)} for part in known]
