"""Learns from jobs and judges every correction by jobs that were left out of its fit: what does not help is not used.

from ddlprof.extensions.learn.judge import learn
lesson = learn(workloads)                              # one workload for each job
Predictor(next_job, learned=lesson.learned)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import fmean
from typing import Any

import numpy as np

from ddlprof.extensions.learn.cases import (
    COMMUNICATION,
    COMPUTATION,
    ComputePoint,
    CorrectionKind,
    HeldOutPrediction,
    cases_of_parts,
    cases_of_steps,
    compute_points,
    fits_of,
)
from ddlprof.extensions.learn.fit import compute_corrections, link_correction
from ddlprof.recommender.coefficients import Coefficients
from ddlprof.recommender.communication.job_parameters import JobFit
from ddlprof.recommender.compute.correction import ComputeCorrection
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Z80
from ddlprof.recommender.learned import FORMAT, Learned, LearnedError, LearnedSource, shipped_version
from ddlprof.recommender.workload import Workload, workload_text

LEAST_JOBS = 3
"""With fewer jobs nothing can be said of jobs left out."""
_FOLDS = 10
_GAIN = 0.95
"""A correction is used if it leaves at most so much of the error: a smaller gain may be chance."""
_COVERAGE = 0.8
_REPEATED_SD = 0.03
"""The spread between two runs of one job, below which no interval goes."""
_WIDEST, _NARROWEST = 4.0, 0.3
"""The most that intervals of communication change."""


@dataclass(frozen=True)
class Lesson:
    """What came of it."""

    learned: Learned | None
    """None where predictions of jobs left out did not get better."""
    errors: tuple[LearnedError, ...] = ()
    why_not: str = ""
    """Why nothing was learned; empty if something was."""
    unused: tuple[tuple[int, str], ...] = ()
    """The jobs that taught nothing, by their place in the input, each with the reason."""


def learn(
    workloads: Sequence[Workload],
    coefficients: Coefficients | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Lesson:
    """Learns from jobs, each a workload with all its measurements. Their order does not matter."""
    shipped = coefficients or Coefficients.shipped()
    order = sorted(range(len(workloads)), key=lambda index: workload_text(workloads[index]))
    jobs = [JudgedJob.of(workloads[index], shipped) for index in order]
    unused = tuple((index, job.why_not) for index, job in zip(order, jobs, strict=True) if job.why_not)
    used = [job for job in jobs if not job.why_not]
    if len(used) < LEAST_JOBS:
        why_not = f"corrections are judged by jobs left out, which takes {LEAST_JOBS} jobs; there are {len(used)}"
        return Lesson(None, (), why_not, unused)
    folds, splits = [], list(_folds(len(used)))
    for train, test in splits:
        folds.append((fitted_to([used[i] for i in train]), [used[i] for i in test]))
        progress(len(folds), len(splits) + 1)  # the last is the one to all
    parts = [row for fitted, left_out in folds for row in _compared(left_out, shipped, fitted, cases_of_parts)]
    of_parts = _errors(parts)
    kept = {(row.what, row.of) for row in of_parts if row.used}
    # Whole steps are predicted with what is used only.
    steps = [
        row for fitted, left_out in folds for row in _compared(left_out, shipped, _only(fitted, kept), cases_of_steps)
    ]
    of_steps = _errors(steps)
    errors = (*of_parts, *of_steps)
    if not kept:
        return Lesson(None, errors, "no correction made predictions of jobs left out better", unused)
    if any(row.after > row.before for row in of_steps):
        return Lesson(None, errors, "whole steps of jobs left out were predicted worse", unused)
    learned = _calibrated(_only(fitted_to(used), kept), parts)
    sources = tuple(job.source(number) for number, job in enumerate(used, 1))
    return Lesson(replace(learned, sources=sources, errors=errors), errors, "", unused)


@dataclass(frozen=True, eq=False)
class JudgedJob:
    """A job with what it tells of the shipped predictor."""

    workload: Workload
    points: tuple[ComputePoint, ...]
    fits: dict[CorrectionKind, JobFit]
    why_not: str = ""
    """Why it tells nothing; empty if it does."""

    @classmethod
    def of(cls, workload: Workload, shipped: Coefficients) -> JudgedJob:
        """Compares the job with its predictions."""
        try:
            points, fits = tuple(compute_points(workload, shipped)), fits_of(workload, shipped)
        except PredictionError as error:
            return cls(workload, (), {}, str(error))
        nothing = "" if points or fits else "one GPU, and neither operators nor FLOPs of the step are known"
        return cls(workload, points, fits, nothing)

    def source(self, number: int) -> LearnedSource:
        """What the file says of it."""
        gpus = {point.cell.gpu_model for point in self.points} | {gpu for gpu, _ in self.fits}
        return LearnedSource(f"job {number}", len(self.workload.measurements), tuple(sorted(gpus)))


@dataclass(frozen=True)
class _Compared:
    """A step of a job left out, predicted without and with what was learned from the others."""

    job: JudgedJob
    before: HeldOutPrediction
    after: HeldOutPrediction


def _folds(jobs: int) -> Iterator[tuple[list[int], list[int]]]:
    from sklearn.model_selection import GroupKFold

    numbers = np.arange(jobs)
    for train, test in GroupKFold(min(jobs, _FOLDS)).split(numbers, groups=numbers):
        yield train.tolist(), test.tolist()


def fitted_to(jobs: Sequence[JudgedJob]) -> Learned:
    """All corrections that the jobs ask for, not judged."""
    groups: dict[str, list[tuple[ComputePoint, int]]] = defaultdict(list)
    for number, job in enumerate(jobs):
        for point in job.points:
            groups[point.cell.knowledge].append((point, number))
    compute: list[ComputeCorrection] = []
    for _, found in sorted(groups.items()):
        compute += compute_corrections([point for point, _ in found], [number for _, number in found])
    kinds = sorted({kind for job in jobs for kind in job.fits}, key=str)
    links = [link_correction(kind, [job.fits[kind] for job in jobs if kind in job.fits]) for kind in kinds]
    return Learned(FORMAT, date.today().isoformat(), shipped_version(), compute=tuple(compute), links=tuple(links))


def _only(learned: Learned, kept: Collection[tuple[str, str]]) -> Learned:
    """The corrections that are used."""
    return replace(
        learned,
        compute=tuple(row for row in learned.compute if (COMPUTATION, row.subject) in kept),
        links=tuple(row for row in learned.links if (COMMUNICATION, row.subject) in kept),
    )


def _compared(
    jobs: Sequence[JudgedJob], shipped: Coefficients, fitted: Learned, cases: Callable[[Workload, Coefficients], Any]
) -> Iterator[_Compared]:
    corrected = fitted.applied_to(shipped)
    for job in jobs:
        before, after = cases(job.workload, shipped), cases(job.workload, corrected)
        yield from (_Compared(job, *pair) for pair in zip(before, after, strict=True))


def _errors(rows: Sequence[_Compared]) -> list[LearnedError]:
    """The mean over jobs of their mean errors, for each correction."""
    groups: dict[tuple[str, str], list[_Compared]] = defaultdict(list)
    for row in rows:
        groups[row.after.what, row.after.of].append(row)
    found = []
    for (what, of), mine in sorted(groups.items()):
        before = _over_jobs(mine, lambda row: row.before.error)
        after = _over_jobs(mine, lambda row: row.after.error)
        jobs = len({id(row.job) for row in mine})
        found.append(
            LearnedError(what, of, jobs, len(mine), before, after, jobs > 1 and after <= _GAIN * before and before > 0)
        )
    return found


def _over_jobs(rows: Sequence[_Compared], value: Callable[[_Compared], float]) -> float:
    by_job: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        by_job[id(row.job)].append(value(row))
    return fmean(fmean(values) for values in by_job.values())


def _calibrated(learned: Learned, rows: Sequence[_Compared]) -> Learned:
    """The corrections with intervals that hold 80 % of the jobs left out."""
    compute = [replace(row, sd=_spread(rows, COMPUTATION, row.subject, lambda case: 1.0)) for row in learned.compute]
    links = []
    for row in learned.links:
        widen = _spread(rows, COMMUNICATION, row.subject, lambda case: case.sd)
        links.append(replace(row, widen=min(max(widen, _NARROWEST), _WIDEST)))
    return replace(learned, compute=tuple(compute), links=tuple(links))


def _spread(rows: Sequence[_Compared], what: str, of: str, unit: Callable[[HeldOutPrediction], float]) -> float:
    """The standard deviation of the errors, in a unit, by the one that 80 % of them stay below; jobs count alike.

    Of few jobs the largest error says little, so one more error as large as the largest is counted as a job.
    """
    mine = [row for row in rows if (row.after.what, row.after.of) == (what, of)]
    jobs = Counter(id(row.job) for row in mine)
    scores = sorted((abs(row.after.log_error) / unit(row.after), 1.0 / jobs[id(row.job)]) for row in mine)
    scores.append((scores[-1][0], 1.0))
    below = np.cumsum([weight for _, weight in scores]) / (len(jobs) + 1)
    score = scores[int(np.searchsorted(below, _COVERAGE - 1e-9))][0]
    return max(score / Z80, _REPEATED_SD)
