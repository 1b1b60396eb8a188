"""The collectives: one typical step of them, and how fast they move their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.run import RankAnalysis
from ddlprof.analysis.traffic import Bandwidth, bandwidths, transfers
from ddlprof.analysis.typical_step import CollectiveSpan, spans, typical_step
from ddlprof.base.units import count, percent, significant, size
from ddlprof.model.dimensions import UNKNOWN_SHOWN
from ddlprof.report.html.chart import ChartMenu, chart, short
from ddlprof.report.html.element import Content, Html, table, tag
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.subject import Subject

MOST_RANKS = 4
MOST_SPANS = 60
_SCOPES = {"intra": "inside a machine", "inter": "between machines", "": "scope not known"}


@dataclass
class Traffic:
    """The collectives of a few ranks: those of one typical step, and their bandwidths."""

    step: int | None
    timelines: list[tuple[RankAnalysis, int, list[CollectiveSpan]]] = field(default_factory=list)
    """A rank, its row of the typical step, and its collectives in that step."""
    bandwidths: list[Bandwidth] = field(default_factory=list)


def read_traffic(subject: Subject) -> Traffic:
    """Reads the collectives of a few ranks, in one pass each, as a long run has many."""
    step = typical_step(subject.ranks, subject.window)
    traffic = Traffic(step)
    found: list[tuple[tuple[str, str, int, int], NDArray[np.float64]]] = []
    for rank in _chosen(subject):
        matched = rank.collectives
        found += transfers(matched, rank.times.steady)
        row = np.flatnonzero(rank.times.step == step)
        if len(row):
            traffic.timelines.append((rank, int(row[0]), spans(matched, int(row[0]))))
    traffic.bandwidths = bandwidths(found)
    return traffic


def _chosen(subject: Subject) -> list[RankAnalysis]:
    """The late rank, and others spread evenly over the job."""
    ranks = [rank for rank in subject.ranks if rank.traffic.duration_us]
    late = subject.report.late_rank.rank if subject.report.late_rank else None
    spread = {round(at) for at in np.linspace(0, len(ranks) - 1, min(MOST_RANKS, len(ranks)))} if ranks else set()
    return [rank for at, rank in enumerate(ranks) if at in spread or rank.data.rank == late]


def by_dimension(subject: Subject) -> Section | Absent:
    """What each dimension of the parallel layout costs, and how fast its groups move data."""
    title = "Communication by dimension of the layout"
    lines = subject.report.dimensions
    if not lines:
        return Absent(title, "nothing tells which dimension of the layout the process groups belong to")
    rows: list[list[Content]] = []
    for line in lines:
        times = (line.comm_s, line.interconnect_s, line.network_s, line.straggler_s, line.bubble_s, line.duration_s)
        rows.append(
            [
                line.dimension or UNKNOWN_SHOWN,
                ", ".join(map(str, line.group_sizes)) or None,
                ", ".join(_SCOPES[scope] for scope in line.scopes) or None,
                None if line.share is None else percent(line.share),
                *(None if seconds is None else subject.scale.number(seconds) for seconds in times),
                f"{line.collectives:.3g}",
                size(round(line.bytes)),
                None if line.bus_gb_s is None else significant(line.bus_gb_s),
            ]
        )
    names = ("Exposed", "Interconnect", "Network", "Straggler", "Bubble", "Duration")
    head = [
        "Dimension", "Ranks in a group", "Scope", "Share of the step",
        *(f"{name} {subject.scale.unit}" for name in names), "Collectives", "Bytes", "Bus GB/s",
    ]  # fmt: skip
    caption = "Communication of a mean steady step of one rank, by dimension"
    layout = tag("p", f"Layout: {subject.report.layout}.") if subject.report.layout else ""
    return Section("dimensions", title, [layout, table(caption, head, rows, left={0, 2})])


def timeline(subject: Subject, traffic: Traffic) -> Section | Absent:
    """One steady step: when each collective was issued, waited, moved data, and was waited for."""
    title = "The collectives of a typical step"
    timelines = [each for each in traffic.timelines if each[2]]
    if not timelines:
        return Absent(title, _why_nothing(subject))
    factor = subject.scale.per_second / 1e6
    data = {
        "unit": subject.scale.unit,
        "ranks": [
            {
                "label": f"rank {rank.data.rank}",
                "step": round(float(rank.times.times["step"][row]) / 1e3 * factor, 4),
                "spans": [_drawn(span, factor) for span in found[:MOST_SPANS]],
            }
            for rank, row, found in timelines
        ],
    }
    most = max(len(found) for _, _, found in timelines)
    cut = f" The first {MOST_SPANS} of up to {most} are drawn." if most > MOST_SPANS else ""
    caption = (
        f"Step {traffic.step}, the steady step nearest to the mean. Each row is a collective, in the order in which "
        "this rank issued it: queued behind the one before, waiting for a later rank, moving data. The line below is "
        f"the time in which computing waited for it (exposed); the rest is hidden behind computing.{cut}"
    )
    rank, _, found = timelines[0]
    exposed = sum(span.exposed_us for span in found) / 1e6
    alt = (
        f"A row for each of {count(len(found), 'collective')} of rank {rank.data.rank} in step {traffic.step}; "
        f"computing waited {subject.time(exposed)} for them."
    )
    figure = chart(
        "timeline", "timeline", data, caption=caption, alt=alt, table=_span_table(subject, timelines),
        height=max(200, 110 + 26 * min(most, MOST_SPANS)),
        choice=ChartMenu("Rank", [f"rank {rank.data.rank} (node {rank.data.node})" for rank, _, _ in timelines]),
    )  # fmt: skip
    return Section("timeline", title, figure)


def _drawn(span: CollectiveSpan, factor: float) -> dict[str, object]:
    def at(microseconds: int | None) -> float | None:
        return None if microseconds is None else round(microseconds * factor, 4)

    end = None if span.duration_us is None else span.start_us + span.duration_us
    return {
        "label": short(span.op, 24),
        "bytes": span.bytes,
        "scope": _SCOPES[span.scope],
        "ready": at(span.ready_us),
        "start": at(span.start_us),
        "moves": None if end is None or span.transfer_us is None else at(end - span.transfer_us),
        "end": at(end),
        "exposed": at(span.exposed_us),
    }


def _span_table(subject: Subject, timelines: Sequence[tuple[RankAnalysis, int, list[CollectiveSpan]]]) -> Html:
    rows: list[list[Content]] = []
    for rank, _, found in timelines:
        for number, span in enumerate(found[:MOST_SPANS]):
            duration, transfer = span.duration_us, span.transfer_us
            times = (
                span.ready_us, span.start_us - span.ready_us,
                None if duration is None or transfer is None else duration - transfer,
                transfer, span.exposed_us, None if duration is None else max(0, duration - span.exposed_us),
            )  # fmt: skip
            cells = [None if us is None else subject.scale.number(us / 1e6) for us in times]
            rows.append(
                [f"rank {rank.data.rank}, {number + 1}", span.op, _SCOPES[span.scope], size(span.bytes), *cells]
            )
    names = ("Ready", "Queued", "Wait", "Transfer", "Exposed", "Hidden")
    head = ["Collective", "Operation", "Scope", "Size", *(f"{name} {subject.scale.unit}" for name in names)]
    return table("The collectives of the step", head, rows, left={0, 1, 2})


def bandwidth(subject: Subject, traffic: Traffic) -> Section | Absent:
    """Bus bandwidth against size, an operation and scope a series."""
    title = "How fast data moves between ranks"
    rows = traffic.bandwidths
    if not rows:
        nothing = _why_nothing(subject)
        return Absent(title, nothing if not traffic.timelines else "no transfer could be told from waiting")
    kinds = sorted({(row.op, row.scope, row.ranks) for row in rows})
    data = {
        "series": [
            {
                "label": short(f"{op}, {_SCOPES[scope]}, {count(ranks, 'rank')}", 48),
                "points": [
                    [max(row.bytes, 1), *(round(v, 6) for v in (row.median_gb_s, row.low_gb_s, row.high_gb_s)),
                     row.collectives]
                    for row in rows
                    if (row.op, row.scope, row.ranks) == (op, scope, ranks)
                ],
            }
            for op, scope, ranks in kinds[:24]
        ]
    }  # fmt: skip
    fastest = max(rows, key=lambda row: row.median_gb_s)
    caption = (
        "The bus bandwidth of the collectives of steady steps, waiting for later ranks left out; both axes are "
        "logarithmic. Bars reach from the 10th to the 90th percentile. Bytes on the busiest link, as nccl-tests count "
        "them, so that operations and numbers of ranks can be compared."
    )
    alt = (
        f"Points of bandwidth against size for {count(len(kinds), 'kind')} of collectives. The fastest is {fastest.op} "
        f"of {size(fastest.bytes)} with {significant(fastest.median_gb_s)} GB/s."
    )
    return Section(
        "bandwidth",
        title,
        chart("bandwidth", "bandwidth", data, caption=caption, alt=alt, table=_bandwidth_table(rows)),
    )


def _bandwidth_table(rows: Sequence[Bandwidth]) -> Html:
    lines: list[list[Content]] = [
        [
            row.op, _SCOPES[row.scope], str(row.ranks), size(row.bytes), f"{row.collectives:,}",
            *(significant(value) for value in (row.low_gb_s, row.median_gb_s, row.high_gb_s)),
        ]
        for row in rows[:200]
    ]  # fmt: skip
    head = ["Operation", "Scope", "Ranks", "Size", "Collectives", "10 % GB/s", "Median GB/s", "90 % GB/s"]
    return table("Bus bandwidth", head, lines, left={0, 1})


def _why_nothing(subject: Subject) -> str:
    if not subject.ranks:
        return "no rank left a file"
    if subject.ranks[0].data.header.world_size == 1:
        return "a single rank communicates with nobody"
    if subject.mean_s("comm") is None:
        return "communication was not measured"
    return "no collective of a steady step was recorded"
