"""Which steps of a torn trace are whole.

Kineto writes threads and streams one after the other, so a trace that ends too early may have the marks of all steps
and the kernels of none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ddlprof.importing.intervals import IntArray, column
from ddlprof.importing.steps import HostSteps
from ddlprof.importing.trace_columns import Found

_MISSING_SHARE = 0.02
"""Of launches without anything that they launched; in a whole trace they are rare."""

_BUSY_SHARE = 0.05
"""Of the launches: a thread with fewer does not launch in every step."""


def only_whole(found: Found, steps: HostSteps, thread: int | None) -> HostSteps:
    """The steps of a torn trace of which nothing seems to be missing."""
    whole = (
        _on_device(found, steps) if len(found.launch_time) or len(found.activities) else _on_host(found, steps, thread)
    )
    left_out = int((~whole).sum())
    if not left_out:
        return steps
    note = f"{left_out} of {len(steps)} steps left out: what they did is in the part that was torn off"
    return replace(
        steps, number=steps.number[whole], begin=steps.begin[whole], end=steps.end[whole], notes=[*steps.notes, note]
    )


def _on_device(found: Found, steps: HostSteps) -> NDArray[np.bool_]:
    """There are launches, nearly each has its kernel, and every thread that launches much goes on after the step."""
    times, threads = column(found.launch_time), column(found.launch_thread, np.int32)
    busy = [times[threads == each] for each in np.unique(threads)]
    ends = [int(mine.max()) for mine in busy if len(mine) > _BUSY_SHARE * len(times)]
    missing = ~np.isin(column(found.launch_correlation), column(found.activities.correlation))
    launches, lost = _count(times, steps), _count(times[missing], steps)
    return (launches > 0) & (lost <= _MISSING_SHARE * launches) & (steps.end <= min(ends, default=-1))


def _on_host(found: Found, steps: HostSteps, thread: int | None) -> NDArray[np.bool_]:
    """The thread goes on after it, and each collective issued in it was also carried out."""
    track = found.operators.get(thread) if thread is not None else None
    last = max(track.begin) if track is not None and len(track) else -1
    issued = np.sort(column([begin for begin, *_ in found.issued]))
    carried_out = np.sort(column([begin for begin, *_ in found.transfers]))
    upto = np.searchsorted(issued, steps.end)
    return (steps.end <= last) & (np.searchsorted(carried_out, steps.end) >= upto - 1)


def _count(times: IntArray, steps: HostSteps) -> IntArray:
    ordered = np.sort(times)
    return np.asarray(np.searchsorted(ordered, steps.end) - np.searchsorted(ordered, steps.begin))
