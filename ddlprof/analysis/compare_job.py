"""What differs between the wall times of two jobs, part by part: start-up, first batches, evaluations and the rest.

A step may be as long as before while the job takes a fifth of the time. A job's parts are judged as the classes of a
step are: by what several runs show, or by a stated allowance where a side is a single run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ddlprof.analysis.compare import ERROR, QUEUED_NOISE, Difference, RunTimes, mean_of_runs
from ddlprof.analysis.job_time import JOB_PARTS, JobTime
from ddlprof.analysis.shifts import RATIO, ROOT, Side, Transform, shift
from ddlprof.analysis.uncertainty import MIN_STEPS, MeanEstimate, mean_error
from ddlprof.model.records import EVALUATION

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt

JOB = "job"
PART_NOISE = 0.1
"""The standard deviation among equal runs of each part but the steps, as a share of the part."""
_EVALUATIONS = 4
"""From so many on, evaluations show themselves how they vary, and differ among equal runs as steps do."""
_LEAST_NOISE = 0.03
"""What equal runs differ by though each does not vary, by where their memory lies and what caches hold."""
START_NOISE = 0.25
"""The same for what is there once a run, and depends on what the caches of the machine hold."""
_ONCE = ("start_up", "warm_up", "compilation", "end")
_LIKE_STEPS = ("steps", "warm_up")
_JITTER_NS = 0.1e9
"""Added to every part, as squares: less is no difference of a job."""


@dataclass(frozen=True)
class JobTimes:
    """The wall time of one run's job and its parts, in nanoseconds, each with its noise as a share of itself."""

    parts: dict[str, float]
    noise: dict[str, float]
    work: float
    """What was done: steps, or samples where the batches of the two sides differ."""

    @property
    def wall(self) -> float:
        return sum(self.parts.values())

    @property
    def wall_noise(self) -> float:
        """How much equal jobs differ, as a share of the wall time. Parts differ for themselves."""
        return math.hypot(*(self.noise[part] * ns for part, ns in self.parts.items())) / self.wall

    def for_work(self, work: float) -> JobTimes:
        """The same job with more or less to do: what is there once a run stays, the rest grows with the work."""
        factor = work / self.work
        parts = {part: ns if part in _ONCE else ns * factor for part, ns in self.parts.items()}
        return JobTimes(parts, self.noise, work)


def evaluations_ns(attempt: Attempt) -> list[int]:
    """How long each evaluation took, on the rank with most of them."""
    spans = ([span.duration_ns for span in rank.data.spans if span.what == EVALUATION] for rank in attempt.ranks)
    return max(spans, key=len, default=[])


def job_times(job: JobTime | None, times: RunTimes, evaluations: Sequence[int] = ()) -> JobTimes | None:
    """The times of a job, whose work is its steps; None where not all of it was measured, or it has hardly a step.

    `evaluations`: how long each of them took, in nanoseconds.
    """
    if job is None or job.until != "end" or not job.timed or job.steps < MIN_STEPS:
        return None
    series = times.series["step"]
    own = math.sqrt(mean_error(series)[0]) / float(series.mean()) if len(series) >= MIN_STEPS and times.step else 0.0
    queued = QUEUED_NOISE * (times.queued_share or 0.0)
    usual = {part: START_NOISE if part in _ONCE else PART_NOISE for part in JOB_PARTS}
    usual["evaluation"] = min(PART_NOISE, math.hypot(times.noise, _LEAST_NOISE, _error_of(evaluations)))
    noise = {part: math.hypot(of, queued) for part, of in usual.items()}
    noise |= dict.fromkeys(_LIKE_STEPS, math.hypot(times.noise, own))
    return JobTimes({part: (job.parts_s[part] or 0.0) * 1e9 for part in JOB_PARTS}, noise, job.steps)


def _error_of(several: Sequence[int]) -> float:
    """The standard error of the mean of these, as a share of it, wider where they are few; too few tell nothing."""
    number = len(several)
    if number < _EVALUATIONS:
        return math.inf
    mean = fmean(several)
    return stdev(several) / mean / math.sqrt(number) * math.sqrt((number - 1) / (number - 3)) if mean else math.inf


def compare_jobs(a: Sequence[JobTimes | None], b: Sequence[JobTimes | None]) -> list[Difference]:
    """The job and its parts, B against A; empty where a run has not measured its job.

    Where runs did different amounts of work, all are taken as if they had done that of A's first one.
    """
    known = [[run for run in side if run is not None] for side in (a, b)]
    if len(known[0]) < len(a) or len(known[1]) < len(b):
        return []
    work = known[0][0].work
    sides = [[run.for_work(work) for run in side] for side in known]
    parts = [part for part in JOB_PARTS if any(run.parts[part] for side in sides for run in side)]
    error = ERROR / 2
    whole = _difference(JOB, sides, error, RATIO)
    return [whole, *(_difference(part, sides, error / len(parts), ROOT) for part in parts)]


def _difference(name: str, sides: Sequence[Sequence[JobTimes]], error: float, by: Transform) -> Difference:
    a, b = (_side(name, side) for side in sides)
    return Difference(name, a.found.mean, b.found.mean, shift(a, b, error, by), None)


def _side(name: str, runs: Sequence[JobTimes]) -> Side:
    times = [run.wall if name == JOB else run.parts[name] for run in runs]
    if len(runs) > 1:
        return Side(mean_of_runs(times))
    noise = runs[0].wall_noise if name == JOB else runs[0].noise[name]
    return Side(MeanEstimate(times[0], _JITTER_NS**2, math.inf), noise, times[0])


def same_work(a: Sequence[JobTimes | None], b: Sequence[JobTimes | None]) -> bool:
    """Whether all runs did as much."""
    return len({run.work for run in (*a, *b) if run is not None}) < 2
