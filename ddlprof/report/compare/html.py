"""A comparison as a page to show to others: one question, one answer, one chart, and what would change the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddlprof.analysis.shifts import FASTER, FEW_STEPS, NONE, SLOWER
from ddlprof.base.units import count, listed, percent
from ddlprof.model.classes import CLASSES
from ddlprof.report.compare import job as jobs
from ddlprof.report.compare import text as words
from ddlprof.report.compare.data import ComparisonData, JobLine, RowLine, SideLine
from ddlprof.report.compare.figures import figures, interval_of, signed
from ddlprof.report.html.chart import chart, short, stacks
from ddlprof.report.html.element import Content, Html, bullets, escaped, facts, joined, part, table, tag
from ddlprof.report.html.shell import Absent, Section, page, verdict_box

_LONGEST_NAME = 40
_LEAST_S = 1e-12  # of a step, so that its interval may begin at nothing
_FARTHEST = 10.0  # times as fast
_BADGES = {FASTER: ("faster", "ok"), SLOWER: ("slower", "warning"), FEW_STEPS: ("too few steps", "info")}
_NO_BADGE = ("no difference", "ok")


def render(data: ComparisonData) -> str:
    """The page, ending with a line end."""
    title = f"ddlprof: {_name(data.a)} and {_name(data.b)}"
    steps = [sum(run.steady_steps for run in side.runs) for side in (data.a, data.b)]
    subtitle = f"{count(steps[0], 'steady step')} of A, {count(steps[1], 'steady step')} of B"
    sections: list[Section | Absent] = [
        _step(data),
        _flips(data),
        _times(data),
        _job(data.job),
        _changed(data),
        _reading(data),
    ]
    return "".join(page(title, subtitle, _top(data), sections))


def _name(side: SideLine) -> str:
    more = len(side.runs) - 1
    return short(side.runs[0].run, _LONGEST_NAME) + (f" and {count(more, 'more run')}" if more else "")


def _top(data: ComparisonData) -> Html:
    badge, severity = ("limit broken", "critical") if data.broken else _BADGES.get(_word(data), _NO_BADGE)
    pairs: list[tuple[str, Content]] = [("Why", reason) for reason in words.why(data)]
    if rates := words.throughput(data):
        pairs.append(("Rate", rates))
    pairs += [("Gate", words.gate_outcome(gate, data)) for gate in data.gates]
    if (a := words.bound_by(data.a)) != (b := words.bound_by(data.b)):
        pairs.append(("Bound by", f"{a} in A, {b} in B"))
    question = f"Is {_name(data.b)} (B) faster than {_name(data.a)} (A)?"
    answer = words.verdict(data)
    box = verdict_box(answer[:1].upper() + answer[1:], badge, severity, pairs)
    return joined(tag("p", question, class_="note"), box)


def _word(data: ComparisonData) -> str:
    """The word for the step, or for the job where only that differs."""
    return data.job.whole.word if data.job and data.step.word == NONE else data.step.word


def _step(data: ComparisonData) -> Section:
    scale = words.scale_of(data)
    rows = {row.name: row for row in data.rows}
    used = [name for name in CLASSES if name in rows and (rows[name].a_s or rows[name].b_s)]
    seconds = {name: [each or 0.0 for each in (rows[name].a_s, rows[name].b_s)] for name in used}
    whole = [scale.time(seconds or 0.0) for seconds in (data.step.a_s, data.step.b_s)]
    figure = chart(
        "step", "stacks", stacks(scale, ["A", "B"], seconds),
        caption=f"The mean {data.basis} of each side, class by class.",
        alt=f"A stacked bar for A, {whole[0]}, and one for B, {whole[1]}.",
        table=_table(data, [row for row in data.rows if row.name in ("step", *CLASSES)]), height=180,
    )  # fmt: skip
    return Section("step", f"The {data.basis} on each side", figure)


def _table(data: ComparisonData, rows: Sequence[RowLine]) -> Html:
    scale = words.scale_of(data)
    head = ["Class", f"A {scale.unit}", f"B {scale.unit}", "B - A", f"Of A's {data.basis}", "Interval", "Outcome"]
    lines: list[list[Content]] = [
        [_indented(words.label(row)), *(cell or None for cell in figures(row, scale))] for row in rows
    ]
    return table(f"Mean times of a {data.basis}", head, lines, left={0, 6})


def _indented(label: str) -> Html:
    """A label of the table in text: what is indented there is a part of the row above."""
    return part(label.strip()) if label.startswith(" ") else escaped(label)


def _flips(data: ComparisonData) -> Section | Absent:
    """What it takes for another answer."""
    title = "What would change the answer"
    sentences = list(_sentences(data))
    return (
        Section("flips", title, bullets(sentences)) if sentences else Absent(title, "there are too few steps to tell")
    )


def _sentences(data: ComparisonData) -> Iterator[str]:
    shift, scale = data.step.mean, words.scale_of(data)
    if shift is None or shift.low_s is None or shift.high_s is None or not data.step.a_s:
        return
    factor = math.sqrt((data.step.a_s + shift.high_s) / max(data.step.a_s + shift.low_s, _LEAST_S))
    half_s = (shift.high_s - shift.low_s) / 2
    if data.step.word not in (FASTER, SLOWER):
        apart = f"{percent(1 - 1 / factor)} faster or {percent(factor - 1)} slower than A"
        yield (
            f"B would have to be {apart} to be told from noise."
            if factor <= _FARTHEST
            else "The steps of both are too uneven: even ten times as fast could be noise."
        )
    else:
        least = min(abs(shift.low_s), abs(shift.high_s))
        yield (
            f"The difference would be noise if it were {scale.time(least)} smaller: its interval is "
            f"{interval_of(shift)} of A's {data.basis}."
        )
        moved = [row for row in data.rows if row.name in CLASSES and row.word == data.step.word and row.mean]
        largest = max(moved, key=lambda row: abs(row.mean.difference_s) if row.mean else 0.0, default=None)
        if largest is not None and largest.mean is not None:
            left = shift.difference_s - largest.mean.difference_s
            outcome = "within the noise" if abs(left) <= half_s else "still beyond the noise"
            rest = f"{signed(left, scale)} {scale.unit}, which is {outcome}"
            yield f"Without the difference in {largest.name}, B would differ by {rest}."
    if data.noise is not None:
        yield "Several runs a side show how much runs differ; with one, a usual value is taken for it."


def _times(data: ComparisonData) -> Section:
    return Section("times", "Classes and their parts", _table(data, words.rows_shown(data)))


def _job(job: JobLine | None) -> Section | Absent:
    title = "The job"
    if job is None:
        return Absent(title, "the wall time of a whole job is not known on both sides")
    scale = jobs.scale_of(job)
    head = ["Part", f"A {scale.unit}", f"B {scale.unit}", "B - A", "Of A's job", "Interval", "Outcome"]
    lines: list[list[Content]] = [
        [_indented(jobs.label(row)), *(cell or None for cell in figures(row, scale))] for row in jobs.rows_shown(job)
    ]
    return Section("job", title, table("Wall time of the job", head, lines, left={0, 6}))


def _changed(data: ComparisonData) -> Section | Absent:
    """What differs besides the times."""
    title = "What changed besides"
    lines = list(words.changed(data, str))
    lines += [f"finding {'gone' if each.side == 'A' else 'new'}: {each.title}" for each in data.findings]
    if (a := words.late_ranks(data.a)) != (b := words.late_ranks(data.b)):
        lines.append(f"late ranks: {a} in A, {b} in B")
    return Section("changed", title, bullets(lines)) if lines else Absent(title, "nothing that is known")


def _reading(data: ComparisonData) -> Section:
    sides = [(letter, listed([run.run for run in side.runs])) for letter, side in (("A", data.a), ("B", data.b))]
    pairs: list[tuple[str, Content]] = [*sides, ("Noise", words.how(data))]
    pairs += [("Note", note) for note in words.notes(data, str)]
    return Section("reading", "How to read this page", facts(pairs))
