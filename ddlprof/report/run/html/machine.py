"""Two sections: the source lines that take the time of `other`, and the counters of host and device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.run import RankAnalysis
from ddlprof.base.units import count, percent, significant
from ddlprof.report.html.chart import chart, numbers, short
from ddlprof.report.html.element import Content, Html, table
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.subject import Subject
from ddlprof.store.tables import CONTEXT_FIELDS

MOST_POINTS = 200
MOST_LINES = 8
_UNITS = {"percent": ("%", 1.0), "bytes": ("GiB", 2.0**-30), "w": ("W", 1.0), "c": ("°C", 1.0), "mhz": ("MHz", 1.0)}
_LABELS = {
    "cpu_percent": "CPU of the machine",
    "memory_used_bytes": "Memory used on the machine",
    "process_rss_bytes": "Resident memory of a rank",
    "process_private_bytes": "Resident memory that a rank shares with nobody",
    "workers_copied_bytes": "Memory that loader workers copied from their rank",
    "workers_new_bytes": "Memory that loader workers have taken since they started",
    "gpu_percent": "GPU busy",
    "gpu_memory_bytes": "GPU memory used",
    "gpu_power_w": "GPU power",
    "gpu_power_limit_w": "GPU power limit",
    "gpu_clock_mhz": "GPU clock",
    "gpu_temperature_c": "GPU temperature",
}


def source_lines(subject: Subject) -> Section | Absent:
    """The source lines that take the time of `other`, by stack samples."""
    title = "Source lines of other"
    report = subject.report
    if not report.other_lines:
        share = report.times["other"].share if report.times else None
        if share is None:
            return Absent(title, "no step was measured")
        why = f"{percent(share)} of the step is in other"
        return Absent(title, f"{why}, with {count(report.other_samples, 'stack sample')}: too few to name a line")
    lines = report.other_lines
    other = subject.mean_s("other") or 0.0
    rows: list[list[Content]] = [
        [line.place, line.what or "", percent(line.share), subject.time(other * line.share)] for line in lines
    ]
    data = {
        "unit": "%",
        "bars": [{"label": short(line.place), "value": round(100 * line.share, 2)} for line in lines],
    }
    caption = (
        f"Where the {subject.time(other)} of other in a step go, by {count(report.other_samples, 'stack sample')} "
        "taken in steady steps."
    )
    figure = chart(
        "lines", "bars", data, caption=caption,
        alt=f"Bars of the share of each source line; the longest is {short(lines[0].place)} with "
        f"{percent(lines[0].share)}.",
        table=table("Source lines", ["Line", "What is known of it", "Share of other", "Per step"], rows, left={0, 1}),
        height=70 + 30 * len(lines),
    )  # fmt: skip
    return Section("lines", title, figure)


def over_time(subject: Subject) -> Section | Absent:
    """Counters of hosts and devices during the run."""
    title = "Host and device"
    ranks = [rank for rank in subject.ranks if len(rank.data.context)]
    figures = [figure for name in CONTEXT_FIELDS if (figure := _counter(subject, ranks, name)) is not None]
    if not figures:
        return Absent(title, "no counters were read: the run was shorter than a second, or they are not available")
    return Section("context", title, figures)


def _counter(subject: Subject, ranks: list[RankAnalysis], name: str) -> Html | None:
    unit, factor = _UNITS.get(name.rpartition("_")[2], ("", 0.0))
    if not unit or "peak" in name:
        return None
    lines = list(_lines(ranks, name, factor))
    if not lines or (name.startswith("workers") and not any(values.any() for _, _, values in lines)):
        return None  # a loader whose workers copy or take nothing is as good as one without any
    label = _LABELS[name]
    rows: list[list[Content]] = [
        [who, *(significant(value) for value in (values.min(), values.mean(), values.max()))]
        for who, _, values in lines
    ]
    shown = _spread(lines)
    data = {
        "unit": unit,
        "lines": [
            {"label": who, "points": [[a, b] for a, b in zip(numbers(x, 3), numbers(y, 3), strict=True)]}
            for who, x, y in ((who, *_thinned(x, y)) for who, x, y in shown)
        ],
    }
    highest = max(lines, key=lambda line: float(line[2].max()))
    left_out = f", {len(shown)} of {len(lines)} shown" if len(shown) < len(lines) else ""
    return chart(
        name.replace("_", "-"), "lines", data,
        caption=f"{label}, in {unit}{left_out}.",
        alt=f"{label} over the minutes of the run, a line for each of {len(shown)}. The highest is "
        f"{significant(float(highest[2].max()))} {unit} on {highest[0]}.",
        table=table(label, ["Of", f"Lowest {unit}", f"Mean {unit}", f"Highest {unit}"], rows),
        height=220,
    )  # fmt: skip


_Line = tuple[str, NDArray[np.float64], NDArray[np.float64]]
"""The node or rank of a counter, the minutes since the start of the job, and the values."""


def _lines(ranks: list[RankAnalysis], name: str, factor: float) -> Iterator[_Line]:
    """The lines of a counter: one for each machine if it is about machines, else one for each rank."""
    of_machine = not name.startswith(("gpu", "process"))
    seen: set[int] = set()
    start = min((rank.shown_origin_unix_ns for rank in ranks), default=0)
    for rank in ranks:
        if of_machine and rank.data.node in seen:
            continue
        values = rank.data.context[name]
        known = ~np.isnan(values)
        if known.any():
            seen.add(rank.data.node)
            minutes = (rank.data.context["time_ns"][known] + (rank.shown_origin_unix_ns - start)) / 60e9
            who = f"node {rank.data.node}" if of_machine else f"rank {rank.data.rank}"
            yield who, minutes, values[known] * factor


def _spread(lines: list[_Line]) -> list[_Line]:
    """The lines with the lowest and the highest mean, and some between."""
    if len(lines) <= MOST_LINES:
        return lines
    by_mean = sorted(range(len(lines)), key=lambda at: float(lines[at][2].mean()))
    chosen = {by_mean[round(at)] for at in np.linspace(0, len(lines) - 1, MOST_LINES)}
    return [line for at, line in enumerate(lines) if at in chosen]


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The means of neighbours, where there are more points than a line shows."""
    size = -(-len(x) // MOST_POINTS)
    if size <= 1:
        return x, y
    begins = np.arange(0, len(x), size)
    lengths = np.diff(np.append(begins, len(x)))
    return np.add.reduceat(x, begins) / lengths, np.add.reduceat(y, begins) / lengths
