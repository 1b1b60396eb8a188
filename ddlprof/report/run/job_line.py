"""The card's line about the wall time of the whole job."""

from __future__ import annotations

from ddlprof.analysis.job_time import JobTime
from ddlprof.base.units import count, long_time, percent

LEAST_BESIDES = 0.05  # of the wall time: below, what a job does besides steps is not worth a line
LEAST_SHOWN = 0.01
NAMES = {"start_up": "start-up", "warm_up": "warm-up", "epoch_start": "first batches of epochs"}
"""What parts are called, where it is not their name."""
_COUNTED = {"evaluation": "evaluations", "checkpoint": "checkpoints", "epoch_start": "epochs"}
_UNTIL = {
    "end": "",
    "entry": ", until its last entry",
    "stopped": " until measuring stopped: what came after is not in it",
}


def job_line(job: JobTime) -> str | None:
    """The wall time and its parts, the largest first; None where the job is nearly all ordinary steps."""
    shares = {part: share for part in job.parts_s if (share := job.share(part))}
    if 1 - shares.get("steps", 0.0) < LEAST_BESIDES:
        return None
    shown = sorted((part for part in shares if shares[part] >= LEAST_SHOWN), key=lambda part: -shares[part])
    parts = ", ".join(_part(job, part, shares[part]) for part in shown)
    how = "" if job.timed else "; an imported run: told by the flags of its steps"
    return f"{long_time(job.wall_s)} in all{_UNTIL[job.until]}: {parts}{how}"


def _part(job: JobTime, part: str, share: float) -> str:
    times = getattr(job, _COUNTED[part]) if part in _COUNTED else None
    many = f" ({count(times, 'time')})" if times else ""
    return f"{NAMES.get(part, part)} {percent(share)}{many}"
