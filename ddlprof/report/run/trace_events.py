"""The events of one rank of a trace: steps, classes, collectives, counters, and the flows between ranks.

Times are whole microseconds, as collectives are recorded; viewers compute with binary fractions, and slices that
overlap by a rounding error would be dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from ddlprof.analysis.collectives import RankCollectives, by_group
from ddlprof.analysis.run import RankAnalysis
from ddlprof.base.text import plain
from ddlprof.model.classes import TABLE, TIMES
from ddlprof.model.dimensions import dimension_of
from ddlprof.model.records import MISSING, NEVER, Flag
from ddlprof.report.run.tables import COUNTS
from ddlprof.report.trace_format import Event, track
from ddlprof.store import CollectiveTable, IntArray

STEPS, CLASSES = "steps", "classes of the step, laid end to end"
WAITS = "waits for communication"
OLDEST_SAMPLE_NS = 5 * 10**9
"""Counters are read about once a second: an older reading than this does not describe the steps shown."""
_LONGEST_NAME = 80
_COUNTERS = (
    ("cpu_percent", "host CPU %", 1.0),
    ("memory_used_bytes", "host memory MiB", 2.0**20),
    ("process_rss_bytes", "process memory MiB", 2.0**20),
    ("gpu_percent", "GPU %", 1.0),
    ("gpu_memory_bytes", "GPU memory MiB", 2.0**20),
    ("gpu_power_w", "GPU power W", 1.0),
)


@dataclass(frozen=True)
class _Arrival:
    """The slice of a collective on one rank, where a flow may begin or end; microseconds."""

    pid: int
    tid: int
    start: int
    end: int
    late: bool
    last: bool


@dataclass
class ShownRank:
    """The steps and collectives of one rank that the trace shows."""

    rank: RankAnalysis
    pid: int
    rows: IntArray
    """The steps shown, as indices of the rank's steps."""
    start_us: IntArray
    """The starts of all steps of the rank, shown or not, in microseconds since the first step shown."""
    zero_s: float
    """The zero of `start_us`, in seconds since the job's origin."""
    arrivals: dict[tuple[str, int], _Arrival] = field(default_factory=dict)
    """The matched collectives by group and sequence number."""

    def end_us(self) -> list[int]:
        """When each step shown ended, never after the next one started."""
        ends = self.start_us + (self.rank.data.steps["step_ns"] + 999) // 1000
        ends[:-1] = np.minimum(ends[:-1], np.maximum(self.start_us[1:], self.start_us[:-1]))
        found: list[int] = ends[self.rows].tolist()
        return found


def step_events(shown: ShownRank, tids: Iterator[int]) -> Iterator[Event]:
    """The steps, each with its classes, flags and batch."""
    tid = next(tids)
    yield from track(shown.pid, tid, STEPS)
    steps, times = shown.rank.data.steps, shown.rank.times.times
    steady = shown.rank.times.steady
    for row, end in zip(shown.rows.tolist(), shown.end_us(), strict=True):
        start = int(shown.start_us[row])
        args: dict[str, Any] = {"start_s": round(shown.zero_s + start / 1e6, 6), "steady": bool(steady[row])}
        args |= {f"{name}_ms": int(times[name][row]) / 1e6 for name in TIMES if times[name][row] != MISSING}
        for name in COUNTS:
            if steps[name][row] != MISSING:
                args[name] = int(steps[name][row])
        flags = Flag(int(shown.rank.flags[row])).text()
        if flags:
            args["flags"] = flags
        yield _slice(shown.pid, tid, f"step {int(steps['step'][row])}", start, end - start, args)


def class_events(shown: ShownRank, tids: Iterator[int]) -> Iterator[Event]:
    """The classes of each step one after the other, which is not when they happened: only their sums are recorded."""
    tid = next(tids)
    yield from track(shown.pid, tid, CLASSES)
    times = shown.rank.times.times
    for row, end in zip(shown.rows.tolist(), shown.end_us(), strict=True):
        step_start = int(shown.start_us[row])
        so_far_ns = 0
        for each in TABLE:
            length_ns = int(times[each.name][row])
            inner_ns = so_far_ns
            yield from _laid(shown.pid, tid, each.name, step_start, end, so_far_ns, length_ns)
            for part in each.part_names:
                part_ns = min(int(times[part][row]), so_far_ns + max(length_ns, 0) - inner_ns)
                yield from _laid(shown.pid, tid, part, step_start, end, inner_ns, part_ns)
                inner_ns += max(part_ns, 0)
            so_far_ns += max(length_ns, 0)


def _laid(pid: int, tid: int, name: str, step_start: int, step_end: int, before_ns: int, ns: int) -> Iterator[Event]:
    """One piece of a step, unless it was not measured or is shorter than a microsecond."""
    start = min(step_start + before_ns // 1000, step_end)
    end = min(step_start + (before_ns + ns) // 1000, step_end)
    if ns > 0 and end > start:
        yield _slice(pid, tid, name, start, end - start, {"ms": ns / 1e6})


def wait_events(shown: ShownRank, tids: Iterator[int], table: CollectiveTable) -> Iterator[Event]:
    """The exposed time of collectives, drawn from where computation needed their results."""
    mine = np.isin(table.row, shown.rows) & (table.need_us != NEVER) & (table.exposed_us != NEVER)
    waits: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, need, exposed in zip(
        *(c[mine].tolist() for c in (table.row, table.need_us, table.exposed_us)), strict=True
    ):
        if exposed:
            waits[row, need].append(exposed)
    if not waits:
        return
    starts = [(int(shown.start_us[row]) + need, sum(exposed), len(exposed)) for (row, need), exposed in waits.items()]
    tid = next(tids)
    yield from track(shown.pid, tid, WAITS)
    starts.sort()
    for (start, length, many), following in zip(starts, [*starts[1:], (None, 0, 0)], strict=True):
        shortened = length if following[0] is None else min(length, following[0] - start)
        if shortened > 0:
            yield _slice(shown.pid, tid, "wait", start, shortened, {"exposed_ms": length / 1e3, "collectives": many})


def collective_events(shown: ShownRank, tids: Iterator[int], matched: RankCollectives) -> Iterator[Event]:
    """The collectives of each group from issue to end; those that overlap are on rows of their own."""
    table = matched.table
    wanted = np.isin(table.row, shown.rows)
    for group, mine in by_group(table):
        chosen = mine[wanted[mine]]
        if not len(chosen):
            continue
        ready = shown.start_us[table.row[chosen]] + table.ready_us[chosen]
        order = np.argsort(ready, kind="stable")
        yield from _group_events(shown, tids, matched, group, chosen[order], ready[order])


def _group_events(
    shown: ShownRank, tids: Iterator[int], matched: RankCollectives, group: str, places: IntArray, ready: IntArray
) -> Iterator[Event]:
    table = matched.table
    ends = np.where(table.end_us[places] == NEVER, ready, shown.start_us[table.row[places]] + table.end_us[places])
    spans = list(zip(ready.tolist(), np.maximum(ends, ready + 1).tolist(), strict=True))  # shorter is recorded as 0
    tid_of: list[int] = []
    for place, row, (start, end) in zip(places.tolist(), rows_of(spans), spans, strict=True):
        if row == len(tid_of):
            tid_of.append(next(tids))
            dimension = dimension_of(table.shapes[table.shape[place]], shown.rank.data.groups)
            name = f"collectives of group {_short(group)}" + (f" ({dimension})" if dimension else "")
            yield from track(shown.pid, tid_of[row], name if row == 0 else f"{name}, row {row + 1}")
        op, tid = _short(table.shapes[table.shape[place]].op), tid_of[row]
        args = _of_collective(matched, place)
        if table.end_us[place] == NEVER:  # only the time of issue on the host is known
            name = f"{op} issued"
            yield {"ph": "i", "s": "t", "name": name, "pid": shown.pid, "tid": tid, "ts": start, "args": args}
            continue
        yield _slice(shown.pid, tid, op, start, end - start, args)
        if matched.matched[place]:
            late, last = bool(matched.late[place]), bool(matched.last[place])
            shown.arrivals[group, int(table.seq[place])] = _Arrival(shown.pid, tid, start, end, late, last)


def rows_of(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A row for each span of time so that none overlaps another on its row; spans are in the order of their starts."""
    busy: list[tuple[int, int]] = []  # the end of the last span of a row, and the row
    free: list[int] = []
    rows = []
    for start, end in spans:
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        rows.append(heappop(free) if free else len(busy))
        heappush(busy, (end, rows[-1]))
    return rows


def _of_collective(matched: RankCollectives, place: int) -> dict[str, Any]:
    """The arguments of a collective's slice; values that were not measured are left out."""
    table = matched.table
    number = int(table.shape[place])
    shape = table.shapes[number]
    args: dict[str, Any] = {"seq": int(table.seq[place]), "bytes": shape.bytes, "ranks": shape.ranks}
    if shape.root is not None:
        args["root"] = shape.root
    if matched.scopes[number]:
        args["scope"] = matched.scopes[number]
    duration, transfer = int(matched.duration_us[place]), int(matched.transfer_us[place])
    if duration != MISSING:
        args["queued_ms"] = int(matched.start_us[place] - table.ready_us[place]) / 1e3
        args["duration_ms"] = duration / 1e3
        if transfer != MISSING and not matched.in_doubt[place]:
            args["transfer_ms"], args["wait_ms"] = transfer / 1e3, (duration - transfer) / 1e3
    if table.exposed_us[place] != NEVER:
        args["exposed_ms"] = int(table.exposed_us[place]) / 1e3
    if table.need_us[place] != NEVER:
        args["needed_after_ms"] = int(table.need_us[place] - table.ready_us[place]) / 1e3
    if matched.late[place]:
        args["arrived"] = "last: the others waited" if matched.last[place] else "before the last"
    return args


def counter_events(shown: ShownRank, zero_ns: int) -> Iterator[Event]:
    """The counters of host and device while the steps ran, with the last reading from before. `zero_ns`: of the trace,
    since the rank's origin."""
    context = shown.rank.data.context
    if not len(context) or not len(shown.rows):
        return
    at = context["time_ns"] - zero_ns
    end = 1000 * shown.end_us()[-1]
    before = np.flatnonzero((at <= 0) & (at > -OLDEST_SAMPLE_NS))[-1:]
    during = np.flatnonzero((at > 0) & (at <= end))
    for place in [*before.tolist(), *during.tolist()]:
        for name, title, unit in _COUNTERS:
            value = float(context[name][place])
            if not np.isnan(value):
                ts = max(0, int(at[place]) // 1000)
                yield {"ph": "C", "name": title, "pid": shown.pid, "ts": ts, "args": {"value": round(value / unit, 3)}}


def flow_events(ranks: Sequence[ShownRank]) -> Iterator[Event]:
    """Arrows from each rank's part of a collective to that of the rank that came last."""
    together: dict[tuple[str, int], list[_Arrival]] = defaultdict(list)
    for shown in ranks:
        for key, arrival in shown.arrivals.items():
            together[key].append(arrival)
    number = 0
    for arrivals in together.values():
        among = arrivals
        if any(a.late for a in arrivals):  # durations show better than clocks which rank was last
            among = [a for a in arrivals if a.last]
        last = max(among, key=lambda a: a.start, default=None)
        for one in arrivals:
            if last is None or one is last:
                continue
            met = max(one.start, last.start)
            if met >= last.end:  # by the clocks, the two parts do not overlap
                continue
            number += 1
            common = {"id": number, "name": "waits for the last", "cat": "collective"}
            yield {"ph": "s", "pid": one.pid, "tid": one.tid, "ts": one.start, **common}
            yield {"ph": "f", "bp": "e", "pid": last.pid, "tid": last.tid, "ts": met, **common}


def _slice(pid: int, tid: int, name: str, ts: int, dur: int, args: dict[str, Any]) -> Event:
    return {"ph": "X", "name": name, "cat": "ddlprof", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _short(name: str) -> str:
    """A name from a run, harmless, and short enough to be there thousands of times."""
    shown = plain(name)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 3]}..."
