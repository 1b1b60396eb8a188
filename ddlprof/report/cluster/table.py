"""Simulations as lines of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlprof.report.cluster import words
from ddlprof.report.cluster.data import Block, SimulatedData
from ddlprof.report.columns import aligned
from ddlprof.report.lines import text_of, wrapped

_WIDTH = 100
_BEST = "*"


def render(data: SimulatedData) -> str:
    """The page, ending with a line end."""
    unit = words.time_unit(data)
    seeds = len(data.question.seeds)
    lines = wrapped(f"cluster simulate {' · '.join(words.described(data.question))}", _WIDTH, "ddlprof  ")
    lines.append("")
    for block in data.blocks:
        lines += [*wrapped(words.title(block), _WIDTH, "Case     ")]
        lines += [*wrapped(words.verdict(block, seeds, unit), _WIDTH, "Best     "), ""]
        lines += [*_table(words.TIMES, block, unit), "", *_table(words.USE, block, unit), ""]
    spread = f" ± standard deviation over {seeds} seeds." if seeds > 1 else ""
    legend = "; ".join(f"{column.head} {column.words}" for column in (*words.TIMES, *words.USE))
    lines += [*wrapped(f"{_BEST} the best.{spread} {legend}.", _WIDTH), ""]
    for note in data.question.notes:
        lines += wrapped(note, _WIDTH, "Note     ")
    return text_of(lines)


def _table(columns: Sequence[words.Column], block: Block, unit: words.TimeUnit) -> Iterator[str]:
    marked = [
        [
            f"{cell}{_BEST if line.figures[column.name].is_best else ' '}"
            for cell, line in zip(words.cells(column, block.policies, unit), block.policies, strict=True)
        ]
        for column in columns
    ]
    heads = ["POLICY", *(f"{words.head(column, unit)} " for column in columns)]
    rows = [[line.policy, *cells] for line, cells in zip(block.policies, zip(*marked, strict=True), strict=True)]
    yield from aligned([heads, *rows], right=range(1, len(heads)))
