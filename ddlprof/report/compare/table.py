"""A comparison as lines of plain text."""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.base.units import count
from ddlprof.report.columns import aligned
from ddlprof.report.compare import words
from ddlprof.report.compare.data import ComparisonData, SideLine
from ddlprof.report.lines import text_of

_LABEL_WIDTH = 9
_NUMBERS = range(1, 6)


def render(data: ComparisonData) -> str:
    """The comparison, ending with a line end."""
    return text_of([*_lines(_head(data)), "", *_table(data), "", *_lines(_rest(data))])


def _lines(labelled: Iterator[tuple[str, str]]) -> Iterator[str]:
    return (f"{label:<{_LABEL_WIDTH}}{text}" for label, text in labelled)


def _head(data: ComparisonData) -> Iterator[tuple[str, str]]:
    yield "ddlprof", f"compare: A {_side(data.a)} · B {_side(data.b)}"
    yield "Verdict", words.verdict(data)
    for reason in words.why(data):
        yield "  why", reason
    if rates := words.throughput(data):
        yield "Rate", rates
    for gate in data.gates:
        yield "Gate", words.gate(gate, data)


def _side(side: SideLine) -> str:
    steps = sum(run.steady_steps for run in side.runs)
    return f"{' '.join(run.run for run in side.runs)} ({count(steps, 'steady step')})"


def _table(data: ComparisonData) -> list[str]:
    scale = words.scale_of(data)
    of = "" if data.basis == "step" else f" a {data.basis}"
    head = ["class", f"A {scale.unit}{of}", f"B {scale.unit}{of}", "B - A", f"of A's {data.basis}", "interval", "B is"]
    rows = [[words.label(row), *words.figures(row, scale)] for row in words.rows_shown(data)]
    return aligned([head, *rows], right=_NUMBERS)


def _rest(data: ComparisonData) -> Iterator[tuple[str, str]]:
    if (a := words.bound_by(data.a)) != (b := words.bound_by(data.b)):
        yield "Bound by", f"{a} in A, {b} in B"
    if (a := words.late_ranks(data.a)) != (b := words.late_ranks(data.b)):
        yield "Late", f"{a} in A, {b} in B"
    for finding in data.findings:
        yield "Finding", f"{'gone' if finding.side == 'A' else 'new'}: {finding.title} ({finding.rule})"
    for facts in words.changed(data, str):
        yield "Changed", facts
    for note in words.notes(data, str):
        yield "Note", note
    yield "Noise", words.how(data)
