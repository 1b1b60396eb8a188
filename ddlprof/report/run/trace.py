"""A few steps of all ranks as a trace for Perfetto: one process for each rank.

docs/trace.md says what each track shows, and which positions are recorded and which are only laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.clocks import clock_origins
from ddlprof.analysis.run import Attempt, RankAnalysis, headline_attempt
from ddlprof.base.errors import UserError
from ddlprof.base.text import plain
from ddlprof.base.units import scale_for
from ddlprof.report.run.trace_events import (
    ShownRank,
    class_events,
    collective_events,
    counter_events,
    flow_events,
    step_events,
    wait_events,
)
from ddlprof.report.trace_format import Event, process, trace_text
from ddlprof.store import RunData

TYPICAL_STEPS = 5
MAX_EVENTS = 400_000
"""The most events of a trace, some 70 MB of JSON. A single step is shown even if it has more."""
_EVENTS_A_STEP = 15
"""The most events of a step: the step itself, its classes and their parts."""
_EVENTS_A_COLLECTIVE = 4
"""The most events of a collective: its slice, a wait, and both ends of a flow."""


def render(
    run: RunData, attempts: Sequence[Attempt], steps: tuple[int | None, int | None] = (None, None)
) -> Iterable[str]:
    """The trace of these steps (the first, and the one after the last) as JSON, in pieces.

    Raises UserError before the first piece if there is nothing or too much to show.
    """
    attempt = headline_attempt(attempts)
    if attempt is None or not len(attempt.window.steps):
        raise UserError(f"{run.typed}: no step was recorded, so there is nothing to show")
    wanted = _steps(attempt, *steps)
    return trace_text(_about(run, attempt, wanted), _events(attempt, wanted, run.origin_unix_ns))


def _steps(attempt: Attempt, first: int | None, end: int | None) -> NDArray[np.int64]:
    """The numbers of the steps to show, ascending."""
    steps = attempt.window.steps
    if first is None and end is None:
        typical = _typical(attempt)
        while len(typical) > 1 and _size(attempt, typical) > MAX_EVENTS:
            typical = typical[: len(typical) // 2]
        return typical
    chosen = steps[(steps >= (first or 0)) & (steps < (steps[-1] + 1 if end is None else end))]
    if not len(chosen):
        raise UserError(
            f"--step-range {'' if first is None else first}:{'' if end is None else end}: no such step was kept; "
            f"there are steps {steps[0]} to {steps[-1]}"
        )
    size = _size(attempt, chosen)
    if len(chosen) > 1 and size > MAX_EVENTS:
        fewer = max(1, len(chosen) * MAX_EVENTS // size)
        raise UserError(
            f"{len(chosen):,} steps of {len(attempt.ranks)} ranks make up to {size:,} events, too many to look at "
            f"(at most {MAX_EVENTS:,}): choose fewer, as with --step-range {chosen[0]}:{chosen[fewer - 1] + 1}"
        )
    return chosen


def _typical(attempt: Attempt) -> NDArray[np.int64]:
    """Some steps around the steady one whose length is nearest to the mean."""
    steps, steady = attempt.window.steps, attempt.window.steady
    total, ranks = np.zeros(len(steps)), np.zeros(len(steps))
    for rank in attempt.ranks:
        at = np.searchsorted(steps, rank.data.steps["step"])
        np.add.at(total, at, rank.data.steps["step_ns"])
        np.add.at(ranks, at, 1)
    mean = total / np.maximum(ranks, 1)
    among = np.flatnonzero(steady) if steady.any() else np.arange(len(steps))
    nearest = int(among[np.argmin(np.abs(mean[among] - mean[among].mean()))])
    first = max(0, min(nearest - TYPICAL_STEPS // 2, len(steps) - TYPICAL_STEPS))
    return np.asarray(steps[first : first + TYPICAL_STEPS])


def _size(attempt: Attempt, wanted: NDArray[np.int64]) -> int:
    """The most events that these steps can make."""
    size = 0
    for rank in attempt.ranks:
        rows = np.isin(rank.data.steps["step"], wanted)
        size += _EVENTS_A_STEP * int(rows.sum())
        size += _EVENTS_A_COLLECTIVE * int(rows[rank.data.collectives.row].sum())
    return size


def _events(attempt: Attempt, wanted: NDArray[np.int64], origin_unix_ns: int) -> Iterator[Event]:
    """Every event, those of a rank together; flows come last, when all ends are known."""
    # On the clock of rank 0's machine; where that is not known, on the rank's own.
    starts = clock_origins([rank.data for rank in attempt.ranks], attempt.clocks)
    zero = min((int(at[rows].min()) for at, rows in _rows(attempt, wanted, starts) if rows.any()), default=0)
    job_zero = _job_zero_ns(attempt, starts, origin_unix_ns)
    tids = count(len(attempt.ranks) + 1)
    flows: list[ShownRank] = []
    for number, (rank, (at, rows)) in enumerate(zip(attempt.ranks, _rows(attempt, wanted, starts), strict=True)):
        pid = number + 1  # 0 is the kernel's idle process to Perfetto
        yield from _process(pid, rank, attempt)
        shown = ShownRank(rank, pid, np.flatnonzero(rows), (at - zero) // 1000, (zero - job_zero) / 1e9)
        matched = rank.collectives
        yield from step_events(shown, tids)
        yield from class_events(shown, tids)
        yield from wait_events(shown, tids, matched.table)
        yield from collective_events(shown, tids, matched)
        yield from counter_events(shown, zero - starts[rank.data.rank])
        flows.append(shown)
    yield from flow_events(flows)


def _job_zero_ns(attempt: Attempt, starts: dict[int, int], origin_unix_ns: int) -> int:
    """The job's origin, from which `start_s` counts in steps.csv, on the scale of `starts`."""
    first = attempt.ranks[0]
    return starts[first.data.rank] - (first.shown_origin_unix_ns - origin_unix_ns)


def _rows(
    attempt: Attempt, wanted: NDArray[np.int64], starts: dict[int, int]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """For each rank the starts of its steps, and which of the steps are wanted."""
    for rank in attempt.ranks:
        steps = rank.data.steps
        yield steps["start_ns"] + starts[rank.data.rank], np.isin(steps["step"], wanted)


def _process(pid: int, rank: RankAnalysis, attempt: Attempt) -> Iterator[Event]:
    """The name of a rank's process, with remarks on its end and its clock."""
    data = rank.data
    words = [f"rank {data.rank}", plain(data.header.host)]
    if data.status != "ok":
        words.append(f"ended by {data.status}" if data.complete else "torn")
    if attempt.clocks[data.node] is None:
        words.append("clock not compared with rank 0's")
    elif rank.clock is not None and rank.clock.bound_ns:
        bound_s = rank.clock.bound_ns / 1e9
        words.append(f"clock ± {scale_for(bound_s).time(bound_s)}")
    yield process(pid, " · ".join(words))
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}


def _about(run: RunData, attempt: Attempt, wanted: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "made_by": "ddlprof report --format trace",
        "run": plain(run.name),
        "attempt": attempt.attempt,
        "steps": f"{wanted[0]}:{wanted[-1] + 1}",
    }
