"""Simulations as lines of plain text."""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.report.cluster import words
from ddlprof.report.cluster.data import Block, SimulatedData
from ddlprof.report.columns import aligned
from ddlprof.report.lines import text_of, wrapped

_WIDTH = 110
_BEST = "*"


def render(data: SimulatedData) -> str:
    """The page, ending with a line end."""
    unit = words.time_unit(data)
    lines = wrapped(" · ".join(words.described(data.question)), _WIDTH, "ddlprof  cluster simulate ")
    for block in data.blocks:
        lines += ["", *_block(block, data, unit)]
    legend = "; ".join(f"{column.head} {column.words}" for column in words.COLUMNS)
    lines += ["", *wrapped(f"{legend}. {_BEST} the best.", _WIDTH)]
    if len(data.question.seeds) > 1:
        lines.append(f"mean ± standard deviation over {len(data.question.seeds)} seeds")
    lines.append("")
    for note in data.question.notes:
        lines += wrapped(note, _WIDTH, "Note     ")
    return text_of(lines)


def _block(block: Block, data: SimulatedData, unit: words.TimeUnit) -> Iterator[str]:
    if name := words.title(block):
        yield from wrapped(name, _WIDTH, "Case     ")
    yield from wrapped(words.verdict(block, len(data.question.seeds), unit), _WIDTH, "Best     ")
    rows = [["POLICY", *(words.head(column, unit) for column in words.COLUMNS)]]
    columns = [
        [
            f"{cell}{_BEST if line.figures[column.name].is_best else ' '}"
            for cell, line in zip(words.cells(column, block.policies, unit), block.policies, strict=True)
        ]
        for column in words.COLUMNS
    ]
    for number, line in enumerate(block.policies):
        rows.append([line.policy, *(column[number] for column in columns)])
    yield from aligned(rows, right=range(1, len(words.COLUMNS) + 1))
