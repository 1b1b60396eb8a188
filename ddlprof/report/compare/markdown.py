"""A comparison as Markdown for a pull request.

Names from users' machines stand in code spans, outside of tables: there neither HTML nor links, mentions or references
mean anything, and a span that is fenced with more backticks than it holds cannot be left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddlprof.base.text import plain, text_of
from ddlprof.base.units import count
from ddlprof.report.compare import job as jobs
from ddlprof.report.compare import text as words
from ddlprof.report.compare.data import ComparisonData, JobLine, SideLine
from ddlprof.report.compare.figures import figures, heads


def render(data: ComparisonData) -> str:
    """The comparison, ending with a line end."""
    return text_of(_lines(data))


def code(text: str) -> str:
    """A code span with the text, fenced so that no text can end it."""
    shown = plain(text) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _lines(data: ComparisonData) -> Iterator[str]:
    yield f"### ddlprof: {words.verdict(data)}"
    yield ""
    yield from (f"- {line}" for line in _summary(data))
    yield ""
    yield from _table(data)
    yield ""
    if data.job:
        yield from _job_table(data.job)
        yield ""
    notes = [*words.notes(data, code), words.how(data)]
    yield from _details(f"{count(len(data.changes), 'fact')} changed", [*words.changed(data, code)])
    yield from _details("Notes", notes)


def _summary(data: ComparisonData) -> Iterator[str]:
    for gate in data.gates:
        text = words.gate_outcome(gate, data)
        yield f"**{text}**" if gate.state == "broken" else text
    yield from words.why(data)
    if rates := words.throughput(data):
        yield rates
    if (a := words.bound_by(data.a)) != (b := words.bound_by(data.b)):
        yield f"Bound by: {a} in A, {b} in B"
    if (a := words.late_ranks(data.a)) != (b := words.late_ranks(data.b)):
        yield f"Late ranks: {a} in A, {b} in B"
    for finding in data.findings:
        yield f"{'Gone' if finding.side == 'A' else 'New'}: {code(finding.title)}"
    yield f"A is {_side(data.a)}, B is {_side(data.b)}"


def _side(side: SideLine) -> str:
    return ", ".join(f"{code(run.run)} ({count(run.steady_steps, 'steady step')})" for run in side.runs)


def _table(data: ComparisonData) -> Iterator[str]:
    scale = words.scale_of(data)
    yield from _heading(heads("class", data.basis, scale))
    for row in words.rows_shown(data):
        label = words.label(row)
        name = f"**{label}**" if row.name == "step" else label.replace("  ", "&nbsp;&nbsp;")
        yield f"| {name} | {' | '.join(figures(row, scale))} |"


def _job_table(job: JobLine) -> Iterator[str]:
    scale = jobs.scale_of(job)
    yield from _heading(heads("job", "job", scale))
    for row in jobs.rows_shown(job):
        yield f"| {jobs.label(row)} | {' | '.join(figures(row, scale))} |"


def _heading(names: list[str]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---|" + "---:|" * 5 + "---|"


def _details(summary: str, items: list[str]) -> Iterator[str]:
    if items:
        yield f"<details><summary>{summary}</summary>"
        yield ""
        yield from (f"- {item}" for item in items)
        yield ""
        yield "</details>"
