"""Simulations as a page of HTML: policies side by side, the cluster over time, and how long jobs take."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ddlprof.base.units import count, significant
from ddlprof.extensions.cluster.report import profile as past
from ddlprof.extensions.cluster.report import text as words
from ddlprof.extensions.cluster.report.data import PolicyComparison, PolicyLine, SimulatedData
from ddlprof.extensions.cluster.simulation.metrics import ClusterUse
from ddlprof.report.html.chart import ChartMenu, chart, rounded, short
from ddlprof.report.html.element import Content, Html, bullets, facts, table, tag
from ddlprof.report.html.shell import Absent, Section, page, verdict_box

_PARTS = 12
"""The columns of a curve that is shown as a table."""
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_LONGEST_TITLE = 120


def render(data: SimulatedData) -> list[str]:
    """The page in pieces, ending with a line end."""
    unit = words.time_unit(data)
    title = f"{short(data.question.trace, _LONGEST_TITLE)} on {count(data.question.gpus, 'GPU')} · ddlprof"
    sections: list[Section | Absent] = [
        _past(data),
        _side_by_side(data, unit),
        _longest_waits(data, unit),
        _dimensions(data),
        _sweep(data, unit),
        _over_time(data, unit),
        _distribution(data, unit),
        Section("rests", "What this rests on", bullets(data.question.notes)),
        _reading(data),
    ]
    return list(page(title, " · ".join(words.described(data.question)), _top(data, unit), sections))


def _top(data: SimulatedData, unit: words.TimeUnit) -> Html:
    wins = Counter(policy for block in data.blocks for policy in block.winners)
    verdicts = [words.verdict(block, len(data.question.seeds), unit) for block in data.blocks]
    titles = map(words.title, data.blocks)
    pairs = list(zip(titles, verdicts, strict=True))
    if not wins:
        return verdict_box("no difference", "all policies have the same mean completion time", "ok", pairs)
    most = max(wins.values())
    of = f" in {most} of {len(data.blocks)} cases" if len(data.blocks) > 1 else ""
    best = " and ".join(policy for policy, times in wins.items() if times == most)
    return verdict_box(best, f"shortest mean completion time{of}", "ok", pairs)


def _past(data: SimulatedData) -> Section | Absent:
    """What the cluster was like that the jobs come from."""
    title = "What this cluster is"
    found = data.question.past
    if found is None:
        return Absent(title, "nobody has looked at the past of the jobs")
    tiles = (
        tag("div", tag("dt", name), tag("dd", value, tag("small", more))) for name, value, more in past.tiles(found)
    )
    sizes = past.sizes(found).html("Jobs by the GPUs that they asked for", found.sizes)
    return Section("cluster", title, [tag("dl", tiles, class_="tiles"), sizes, bullets(past.read_with(found))])


def _side_by_side(data: SimulatedData, unit: words.TimeUnit) -> Section:
    spread = " ± is the standard deviation over the seeds." if len(data.question.seeds) > 1 else ""
    tables = [
        table(
            f"{words.title(block)}: {what}",
            ["Policy", *(words.head(column, unit) for column in columns)],
            _rows(columns, block.policies, unit),
        )
        for block in data.blocks
        for what, columns in (("times", words.TIMES), ("GPUs and fairness", words.USE))
    ]
    return Section("policies", "Side by side", [*tables, tag("p", f"Bold: the best.{spread}")])


def _longest_waits(data: SimulatedData, unit: words.TimeUnit) -> Section | Absent:
    """Who pays for the mean."""
    title, several = "The jobs that waited longest", len(data.blocks) > 1
    rows: list[list[Content]] = [
        [
            *[words.title(block)] * several, line.policy, short(waited.job_id, _LONGEST_TITLE), str(waited.gpus),
            _figure(waited.waited_s / unit.seconds), "" if waited.slowdown is None else _figure(waited.slowdown),
        ]
        for block in data.blocks
        for line in block.policies
        for waited in line.longest_waits
    ]  # fmt: skip
    if not rows:
        return Absent(title, "no job waited")
    head = [*["Case"] * several, "Policy", "Job", "GPUs", f"Without GPUs [{unit.name}]", "Slowdown"]
    note = (
        "Slowdown is the completion time over the time alone. A policy with a good mean may starve a few jobs:"
        " fairness is then near 0, and they are here."
    )
    return Section(
        "waits", title, [table("The longest waits of each policy", head, rows, left=range(2 + several)), tag("p", note)]
    )


def _dimensions(data: SimulatedData) -> Section | Absent:
    """What the network costs, by the dimension of the layouts of the jobs."""
    title = "Communication by dimension"
    names = list(
        dict.fromkeys(name for block in data.blocks for each in block.policies for name in each.comm_dimensions)
    )
    if not names:
        return Absent(title, "no job has a known layout: see the column layout of --models")
    what = "GPU-hours of exposed communication of jobs with a layout"
    spent = _table(data, what, names, lambda line: [line.comm_dimensions.get(name, 0.0) for name in names])
    return Section("dimensions", title, spent)


def _table(
    data: SimulatedData, caption: str, heads: Sequence[str], figures: Callable[[PolicyLine], Iterable[float]]
) -> Html:
    """A row for each policy of each case."""
    rows: list[list[Content]] = [
        [words.title(block), line.policy, *map(_figure, figures(line))]
        for block in data.blocks
        for line in block.policies
    ]
    return table(caption, ["Case", "Policy", *heads], rows, left={0, 1})


def _rows(columns: Sequence[words.Measure], lines: Sequence[PolicyLine], unit: words.TimeUnit) -> list[list[Content]]:
    def marked(column: words.Measure) -> list[Content]:
        texts = words.cells(column, lines, unit)
        is_best = [line.figures[column.name].is_best for line in lines]
        return [tag("strong", text) if best else text for text, best in zip(texts, is_best, strict=True)]

    by_policy = zip(*map(marked, columns), strict=True)
    return [[line.policy, *cells] for line, cells in zip(lines, by_policy, strict=True)]


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
    figure = chart(
        "sweep", "curves", {"views": [view for _, view in views]},
        caption="Mean completion time of jobs, over all seeds.",
        alt="Mean completion times, a line for each policy.",
        table=_table(data, "Mean completion time", [unit.name], lambda line: [line.mean_s / unit.seconds]),
        choice=ChartMenu("Show", [name for name, _ in views]),
    )  # fmt: skip
    return Section("sweep", title, figure)


def _sweep_view(
    blocks: Sequence[PolicyComparison], along: str, fixed: str, value: float | None, unit: words.TimeUnit
) -> tuple[str, dict[str, Any]]:
    chosen = sorted((b for b in blocks if getattr(b, fixed) == value), key=lambda b: getattr(b, along))
    lines = [
        _line(policy, [(getattr(b, along), b.policies[number].mean_s / unit.seconds) for b in chosen])
        for number, policy in enumerate(chosen[0].policies)
    ]
    names = {"load": "load", "predictable": "share of jobs that are predictable"}
    label = f"over the {names[along]}" + (f", {names[fixed]} {value:g}" if value is not None else "")
    return label, {"along": names[along], "unit": unit.long_name, "lines": lines}


def _over_time(data: SimulatedData, unit: words.TimeUnit) -> Section:
    gpus, seed = data.question.gpus, data.question.seeds[0]
    used = _timeline(data, unit, "used", "GPUs in use", "%", lambda load: 100 * load.used_gpus / gpus, 100)
    waiting = _timeline(data, unit, "waiting", "Jobs that wait for GPUs", "jobs", lambda load: load.waiting_jobs)
    of_seed = [tag("p", f"Of seed {seed}.")] if len(data.question.seeds) > 1 else []
    return Section("time", "Over time", [*of_seed, used, waiting])


def _timeline(
    data: SimulatedData, unit: words.TimeUnit, name: str, what: str, of: str, value: Callable[[ClusterUse], float],
    top: float | None = None,
) -> Html:  # fmt: skip
    views = []
    for block in data.blocks:
        begin_s = min((line.over_time[0].begin_s for line in block.policies if line.over_time), default=0.0)
        lines = [
            _line(line, [((each.end_s - begin_s) / unit.seconds, value(each)) for each in line.over_time])
            for line in block.policies
        ]
        views.append({"along": unit.long_name, "unit": of, "least": 0, "lines": lines, "top": top})
    head = [f"{number}/{_PARTS}" for number in range(1, _PARTS + 1)]
    at = f"{what} [{of}] at twelfths of each policy's makespan"
    return chart(
        name, "curves", {"views": views}, caption=f"{what}, means over short times.",
        alt=f"{what} over time, a line for each policy.",
        table=_table(data, at, head, lambda line: map(value, _thinned(line.over_time))),
        choice=ChartMenu("Show", [words.title(block) for block in data.blocks]),
    )  # fmt: skip


def _thinned(loads: Sequence[ClusterUse]) -> list[ClusterUse]:
    return [loads[(number + 1) * len(loads) // _PARTS - 1] for number in range(_PARTS)] if loads else []


def _distribution(data: SimulatedData, unit: words.TimeUnit) -> Section:
    views = []
    for block in data.blocks:
        lines = [
            _line(line, [(seconds / unit.seconds, 100 * share) for seconds, share in line.completion_cdf])
            for line in block.policies
        ]
        views.append({"along": unit.long_name, "unit": "%", "log": True, "lines": lines, "top": 100, "near": True})
    head = [f"{100 * share:g} %" for share in _SHARES]

    def within(line: PolicyLine) -> list[float]:
        return [_within_s(line, share) / unit.seconds for share in _SHARES]

    figure = chart(
        "completion", "curves", {"views": views},
        caption="The share of jobs that complete within a time of their submission; the axis of times is logarithmic.",
        alt="Distributions of the completion times of jobs, a line for each policy.",
        table=_table(data, f"So many jobs complete within [{unit.name}]", head, within),
        choice=ChartMenu("Show", [words.title(block) for block in data.blocks]),
    )  # fmt: skip
    return Section("completion", "How long jobs take", figure)


def _within_s(line: PolicyLine, share: float) -> float:
    """The time within which so many jobs complete."""
    shares = [each for _, each in line.completion_cdf]
    return line.completion_cdf[min(bisect_left(shares, share - 1e-9), len(shares) - 1)][0]


def _line(line: PolicyLine, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {"label": short(line.policy), "points": [[rounded(x), rounded(y)] for x, y in points]}


def _reading(data: SimulatedData) -> Section:
    columns = (*words.TIMES, *words.USE)
    pairs: list[tuple[str, Content]] = [(column.head, column.words) for column in columns]
    return Section("reading", "How to read this page", facts(pairs))


def _figure(value: float) -> str:
    return significant(value, 4)
