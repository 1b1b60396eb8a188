"""Simulations as a page of HTML: policies side by side, the cluster over time, and how long jobs take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlprof.report.cluster import words
from ddlprof.report.cluster.data import HEADLINE, Block, PolicyLine, SimulatedData
from ddlprof.report.html.chart import Choice, chart, short
from ddlprof.report.html.element import Content, Html, joined, tag
from ddlprof.report.html.shell import Absent, Section, page
from ddlprof.report.html.table import facts, table
from ddlprof.report.units import count

_TABLE_ROWS = 13
"""Of curves: more would be no table that anybody reads."""
_LONGEST_TITLE = 120
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def render(data: SimulatedData) -> list[str]:
    """The page in pieces, ending with a line end."""
    unit = words.time_unit(data)
    title = f"{short(data.question.trace, _LONGEST_TITLE)} on {count(data.question.gpus, 'GPU')} · ddlprof"
    sections: list[Section | Absent] = [
        _side_by_side(data, unit),
        _sweep(data, unit),
        _over_time(data, unit),
        _distribution(data, unit),
        _rests_on(data),
        _reading(data),
    ]
    return list(page(title, " · ".join(words.described(data.question)), _top(data, unit), sections))


def _top(data: SimulatedData, unit: words.TimeUnit) -> Html:
    best = data.blocks[0].best.policy
    seeds = len(data.question.seeds)
    heading = tag("h2", best, " ", tag("span", "shortest mean completion time", class_="badge ok"))
    pairs: list[tuple[str, Content]] = [
        (words.title(block) or "Result", words.verdict(block, seeds, unit)) for block in data.blocks
    ]
    return joined(tag("div", heading, facts(pairs), class_="verdict ok"))


def _name(block: Block) -> str:
    return words.title(block) or "policies"


def _side_by_side(data: SimulatedData, unit: words.TimeUnit) -> Section:
    head = ["Policy", *(words.head(column, unit) for column in words.COLUMNS)]
    tables = []
    for block in data.blocks:
        columns = [_cells(column, block.policies, unit) for column in words.COLUMNS]
        rows = [[line.policy, *cells] for line, cells in zip(block.policies, zip(*columns, strict=True), strict=True)]
        tables.append(table(_name(block), head, rows))
    spread = " ± is the standard deviation over the seeds." if len(data.question.seeds) > 1 else ""
    return Section("policies", "Side by side", [*tables, tag("p", f"Bold: the best.{spread}")])


def _cells(column: words.Column, lines: Sequence[PolicyLine], unit: words.TimeUnit) -> list[Content]:
    texts = words.cells(column, lines, unit)
    return [
        tag("strong", text) if line.figures[column.name].is_best else text
        for line, text in zip(lines, texts, strict=True)
    ]


def _sweep(data: SimulatedData, unit: words.TimeUnit) -> Section | Absent:
    """How the policies change with the load, and with the share of predictable jobs."""
    title = "Over load and predictability"
    loads = list(dict.fromkeys(block.load for block in data.blocks))
    shares = list(dict.fromkeys(block.predictable for block in data.blocks))
    views = []
    if len(loads) > 1:
        views += [_sweep_view(data.blocks, "load", "predictable", share, unit) for share in shares]
    if len(shares) > 1:
        views += [_sweep_view(data.blocks, "predictable", "load", load, unit) for load in loads]
    if not views:
        return Absent(title, "one load and one share of predictable jobs were simulated")
    rows = [
        [_name(block), line.policy, words.cells(words.COLUMNS[0], [line], unit)[0]]
        for block in data.blocks
        for line in block.policies
    ]
    figure = chart(
        "sweep", "curves", {"views": [view for _, view in views]},
        caption="Mean completion time of jobs: the mean over the seeds.",
        alt="Mean completion times, a line for each policy.",
        table=table("Mean completion time", ["Case", "Policy", unit.name], rows, left={0, 1}),
        choice=Choice("Show", [name for name, _ in views]),
    )  # fmt: skip
    return Section("sweep", title, figure)


def _sweep_view(
    blocks: Sequence[Block], along: str, fixed: str, value: float | None, unit: words.TimeUnit
) -> tuple[str, dict[str, Any]]:
    chosen = sorted((b for b in blocks if getattr(b, fixed) == value), key=lambda b: getattr(b, along))
    lines = [
        {
            "label": short(policy.policy),
            "points": [
                [getattr(block, along), _rounded(block.policies[number].figures[HEADLINE].mean / unit.seconds)]
                for block in chosen
            ],
        }
        for number, policy in enumerate(chosen[0].policies)
    ]
    names = {"load": "load", "predictable": "share of jobs that are predictable"}
    label = f"over the {names[along]}" + (f", {names[fixed]} {value:g}" if value is not None else "")
    return label, {"along": names[along], "unit": unit.name, "least": None, "lines": lines}


def _over_time(data: SimulatedData, unit: words.TimeUnit) -> Section:
    first = data.question.seeds[0]
    use = _curves(data, "use", "GPUs in use", "%", unit, 1, 100, f"GPUs in use, means over short times, seed {first}.")
    waiting = _curves(data, "waiting", "Jobs that wait", "jobs", unit, 2, 1, f"Jobs that wait for GPUs, seed {first}.")
    return Section("time", "Over time", [use, waiting])


def _curves(
    data: SimulatedData, name: str, what: str, of: str, unit: words.TimeUnit, column: int, factor: float, caption: str
) -> Html:
    views = []
    for block in data.blocks:
        lines = [
            {
                "label": short(line.policy),
                "points": [[_rounded(each[0] / unit.seconds), _rounded(each[column] * factor)] for each in line.use],
            }
            for line in block.policies
        ]
        views.append({"along": unit.name, "unit": of, "least": 0, "lines": lines, "top": 100 if of == "%" else None})
    rows = [
        [_name(block), line.policy, *(_figure(each[column] * factor) for each in _thinned(line))]
        for block in data.blocks
        for line in block.policies
    ]
    head = ["Case", "Policy", *(f"part {number} of {_TABLE_ROWS - 1}" for number in range(1, _TABLE_ROWS))]
    return chart(
        name, "curves", {"views": views}, caption=caption,
        alt=f"{what} over time, a line for each policy.",
        table=table(f"{what} [{of}], over equal parts of each policy's time", head, rows, left={0, 1}),
        choice=Choice("Show", [_name(block) for block in data.blocks]),
    )  # fmt: skip


def _thinned(line: PolicyLine) -> list[tuple[float, float, float]]:
    parts = _TABLE_ROWS - 1
    return [line.use[(number + 1) * len(line.use) // parts - 1] for number in range(parts)]


def _distribution(data: SimulatedData, unit: words.TimeUnit) -> Section:
    views = []
    for block in data.blocks:
        lines = [{"label": short(line.policy), "points": _steps(line.completion_s, unit)} for line in block.policies]
        views.append({"along": unit.name, "unit": "%", "log": True, "lines": lines, "top": 100, "near": True})
    rows = [
        [_name(block), line.policy, *(_figure(_quantile(line.completion_s, share) / unit.seconds) for share in _SHARES)]
        for block in data.blocks
        for line in block.policies
    ]
    head = ["Case", "Policy", *(f"{100 * share:g} %" for share in _SHARES)]
    figure = chart(
        "completion", "curves", {"views": views},
        caption="The share of jobs that end within a time of their submission; the times are logarithmic.",
        alt="Distributions of the completion times of jobs, a line for each policy.",
        table=table(f"So many jobs end within [{unit.name}]", head, rows, left={0, 1}),
        choice=Choice("Show", [_name(block) for block in data.blocks]),
    )  # fmt: skip
    return Section("completion", "How long jobs take", figure)


def _steps(completion_s: Sequence[float], unit: words.TimeUnit) -> list[list[float]]:
    number = len(completion_s)
    return [[_rounded(each / unit.seconds), _rounded(100 * (at + 1) / number)] for at, each in enumerate(completion_s)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(round(share * len(ordered)) - 1, 0)]


def _rests_on(data: SimulatedData) -> Section:
    return Section(
        "rests", "What this rests on", tag("ul", (tag("li", each) for each in data.question.notes), class_="notes")
    )


def _reading(data: SimulatedData) -> Section:
    pairs: list[tuple[str, Content]] = [(column.head, column.words) for column in words.COLUMNS]
    return Section("reading", "How to read this page", facts(pairs))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _figure(value: float) -> str:
    return f"{value:,.4g}"
