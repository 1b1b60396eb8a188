"""The first screen: what bounds the step, why, what to do, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.analysis.findings import Finding
from ddlprof.analysis.hang_facts import BUSY
from ddlprof.analysis.hang_words import label as hang_label
from ddlprof.base.units import count, percent, ranges, significant
from ddlprof.model.classes import MEANINGS, TABLE, TIMES
from ddlprof.report.hang import html as hung
from ddlprof.report.html.chart import chart
from ddlprof.report.html.element import Content, Html, facts, joined, part, table, tag
from ddlprof.report.html.shell import Absent, Section, verdict_box
from ddlprof.report.run import text as card
from ddlprof.report.run.energy import in_all
from ddlprof.report.run.html.subject import NAMES, Subject, swatch

_SEVERITY = {
    "ok": "fine", "warning": "warning", "critical": "critical", "unknown": "undecided", "info": "for information",
}  # fmt: skip
_SHOWN_ELSEWHERE = frozenset({"ddlprof", "Verdict", "why", "next", "Step", "Note", "Files", "Other", "Finding"})
"""Lines of the card that have a place of their own on the page."""
_PARTS = frozenset(part for each in TABLE for part in each.part_names)


def top(subject: Subject) -> Html:
    """The verdict with its reason and the next action, the mean step, and the other lines of the card."""
    lines = [(label.strip(), text) for label, text in card.lines(subject.report)]
    said = dict(lines)
    verdict = subject.report.verdict
    severity = verdict.severity if verdict else "unknown"
    name = verdict.headline or verdict.name if verdict else said.get("Verdict", "no step was measured")
    reasons = [(word, said[key]) for word, key in (("Why", "why"), ("Next", "next")) if key in said]
    hang = subject.report.hang if subject.report.hang and subject.report.hang.kind != BUSY else None
    shown = {*_SHOWN_ELSEWHERE, *([hang_label(hang)] if hang else [])}
    rest = [(label, text) for label, text in lines if label not in shown]
    return joined(
        hung.box(hang) if hang else None,  # what a job that stands still is asked first
        verdict_box(name, _badge(subject, name, severity), severity, reasons),
        _tiles(subject),
        mean_step(subject) if subject.step_s else None,
        facts(rest) if rest else None,
    )


def _badge(subject: Subject, name: str, severity: str) -> str:
    """What stands beside the name of the verdict; nothing where it would repeat it."""
    verdict = subject.report.verdict
    share = ""
    if verdict and verdict.share and verdict.headline is None and severity != "unknown":
        share = f"{percent(verdict.share)} of the step, "
    if severity == "unknown" and name.lower() == _SEVERITY[severity]:
        return ""
    share += "on a shared machine, " if verdict and verdict.queued_share is not None else ""
    return share + _SEVERITY.get(severity, severity)


def _tiles(subject: Subject) -> Html | None:
    report = subject.report
    step = report.times.get("step")
    if step is None or step.mean_s is None:
        return None
    tiles: list[tuple[str, str, str]] = [("Mean step", subject.scale.time(step.mean_s), _spread(subject))]
    rates = report.rates
    if rates.samples_per_s is not None:
        samples = f"{significant(rates.samples_per_s)} samples/s"
        tokens = f"{significant(rates.tokens_per_s)} tokens/s" if rates.tokens_per_s is not None else None
        tiles.append(("Throughput", tokens or samples, samples if tokens else ""))
    if rates.mfu is not None:
        tiles.append(("MFU", percent(rates.mfu), f"of {significant(rates.peak_tflops or 0.0)} TFLOP/s a GPU"))
    if report.energy is not None:
        drawn = f"{significant(report.energy.power_w)} W, {in_all(report.energy)}"
        tiles.append(("Energy of a step", f"{significant(report.energy.step_j)} J", drawn))
    tiles.append(("Steady steps", f"{report.steady_steps:,}", f"of {count(report.steps, 'step')}"))
    complete = sum(rank.complete for rank in report.headline_ranks)
    ranks = f"{complete} of {report.world_size}"
    tiles.append(("Ranks complete", ranks, f"on {count(report.nodes, 'node')}"))
    entries = (tag("div", tag("dt", name), tag("dd", value, tag("small", more))) for name, value, more in tiles)
    return tag("dl", entries, class_="tiles")


def _spread(subject: Subject) -> str:
    step = subject.report.times["step"]
    if step.median_s is None or step.p95_s is None:
        return ""
    return f"median {subject.scale.number(step.median_s)}, p95 {subject.scale.number(step.p95_s)}"


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
        alt=f"One bar, the mean step of {subject.time(subject.step_s)}: {_classes_in_words(subject)}.",
        table=_class_table(subject),
        height=170,
    )


def _classes_in_words(subject: Subject) -> str:
    """`compute 50.9 ms (72 %), data ...`: the classes of the mean step."""
    terms = [(name, mean) for name in subject.terms if (mean := subject.mean_s(name))]
    return ", ".join(f"{NAMES[name]} {subject.time(mean)} ({subject.share(mean)})" for name, mean in terms)


def _class_table(subject: Subject) -> Html:
    """Every class and part with its mean, its share and its spread."""
    rows: list[list[Content]] = []
    for name in TIMES:
        line = subject.report.times[name]
        error = subject.time(line.standard_error_s)
        label = joined(swatch(name), NAMES.get(name, name))
        rows.append(
            [
                part(label) if name in _PARTS else label,
                MEANINGS[name],
                subject.time(line.mean_s),
                percent(line.share) if line.share is not None else None,
                f"± {error}" if error is not None else None,
                subject.time(line.median_s),
                subject.time(line.p95_s),
            ]
        )
    head = ["Class", "Meaning", "Mean", "Share", "Standard error", "Median", "95th percentile"]
    return table("The classes of a step, over the steady steps of all ranks", head, rows, left={0, 1})


def _number(subject: Subject, name: str) -> float:
    return round((subject.mean_s(name) or 0.0) * subject.scale.per_second, 4)


def _parts(subject: Subject, name: str) -> list[dict[str, object]]:
    """The parts of a class that the bar shows as one."""
    each = next((c for c in TABLE if c.name == name), None)
    known = [part for part in each.part_names if subject.mean_s(part) is not None] if each else []
    if not any(subject.mean_s(part) for part in known):
        return []
    return [{"name": part, "label": NAMES[part], "value": _number(subject, part)} for part in known]


def findings(subject: Subject) -> Section | Absent:
    """The findings of all rules."""
    found = subject.report.findings
    if not found:
        return Absent("Findings", "no rule found anything else to name")
    return Section("findings", "Findings", [_finding(subject, each) for each in found])


def _finding(subject: Subject, found: Finding) -> Html:
    badge = tag("span", _SEVERITY.get(found.severity, found.severity), class_=f"badge {found.severity}")
    return tag(
        "article",
        tag("h3", found.title, " ", badge),
        facts(list(_of_finding(subject, found))),
        class_=f"finding {found.severity}",
    )


def _of_finding(subject: Subject, found: Finding) -> Iterator[tuple[str, Content]]:
    yield "Evidence", found.evidence
    yield "Next", found.next
    if found.gain_s is not None:
        share = f" ({percent(found.gain_s / subject.step_s)} of it)" if subject.step_s else ""
        yield "Gain", f"up to {subject.scale.time(found.gain_s)} of each step{share}"
    concerned = f"{percent(found.share)} of the {found.of}" if found.share is not None else ""
    ranks = f"{'rank' if len(found.ranks) == 1 else 'ranks'} {ranges(found.ranks)}" if found.ranks else ""
    if concerned or ranks:
        yield "Concerns", ", ".join(part for part in (concerned, ranks) if part)
    yield "Rests on", f"{count(found.samples, 'sample')}; rule {found.rule}"
