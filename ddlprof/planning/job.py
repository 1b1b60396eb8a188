"""The job that RUN describes, read for `recommend` and `predict`; errors are one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from ddlprof.model.manifest import Manifest, TrainingFacts
    from ddlprof.recommender import Learned, Workload

_SAME = ("layers", "parameter_tensors", "gradient_bytes")
"""The fields that two runs of one job have in common."""
_ADDED = (
    "flops_per_sample", "loader_cpu_s_per_sample", "loader_bytes_per_sample", "loader_blocked_s_per_sample",
    "loader_workers", "step", "job", "tokens_per_sample", "transformer",
)  # fmt: skip
"""The fields that one run may know for all of them."""


@dataclass(frozen=True)
class DescribedJob:
    """A workload, with the command and the other jobs that the runs tell of."""

    name: str
    workload: Workload
    command: tuple[str, ...] = ()
    """The words that followed `python`; empty if not known."""
    dataset_samples: int | None = None
    others: tuple[Workload, ...] = ()
    """Other jobs, whose measured steps show how fast the GPUs are that they ran on."""
    learned: Learned | None = None
    """What runs of the user's own taught."""


def identity(job: DescribedJob) -> tuple[object, ...]:
    """What all runs of one job have in common: its name, and the counts of its model."""
    return job.name, *(getattr(job.workload, name) for name in _SAME)


def joined(workloads: Sequence[Workload]) -> Workload:
    """One job with the measurements of all its runs; of its facts, each is the first that a run knows."""
    from dataclasses import replace

    known = {name: _first_known(getattr(workload, name) for workload in workloads) for name in (*_SAME, *_ADDED)}
    measurements = [measurement for workload in workloads for measurement in workload.measurements]
    assumed = list(dict.fromkeys(sentence for workload in workloads for sentence in workload.assumed))
    return replace(workloads[0], **known, measurements=measurements, assumed=assumed)


def load_job(runs: Sequence[str], batches: Sequence[int] = (), other_jobs: Sequence[str] = ()) -> DescribedJob:
    """The job of the first run, with the measurements of all, and what only the others know of the model.

    `other_jobs` are runs of other jobs. A single one of `batches` is also the batch of runs that do not tell theirs.
    Raises UserError if one of the runs is another job, or cannot be predicted.
    """
    from dataclasses import replace

    jobs = [_load(run, batches[0] if len(batches) == 1 else None) for run in runs]
    first = jobs[0].workload
    for run, job in zip(runs, jobs, strict=True):
        for name in _SAME:
            one, other = getattr(first, name), getattr(job.workload, name)
            if None not in (one, other) and one != other:
                raise UserError(f"{run} is not the job of {runs[0]}: it has {name} {other:,}, not {one:,}")
    return replace(
        jobs[0],
        workload=joined([job.workload for job in jobs]),
        others=tuple(_load(run, None).workload for run in other_jobs),
    )


def _first_known(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _load(run: str, batch: int | None) -> DescribedJob:
    from ddlprof.api import load
    from ddlprof.store.archive import is_archive

    if os.path.exists(run) and not os.path.isdir(run) and not is_archive(Path(run)):  # Path's raise for a long name
        from ddlprof.recommender.workload import read_workload

        workload = read_workload(Path(run))
        return DescribedJob(workload.name, workload)
    loaded = load(run)
    manifest = loaded.manifest
    if manifest is not None:
        _require_predictable(run, manifest.training)
    workload = loaded.workload(batch)
    if manifest is None:
        return DescribedJob(workload.name, workload)
    return DescribedJob(manifest.name, workload, _command(manifest), manifest.training.dataset_samples)


def _require_predictable(run: str, training: TrainingFacts) -> None:
    from ddlprof.api import predicted_strategy
    from ddlprof.recommender import PredictionError
    from ddlprof.recommender.strategy import check_measured_strategy

    try:
        check_measured_strategy(predicted_strategy(training))
    except PredictionError as error:
        raise UserError(f"{run}: {error}") from None


def _command(manifest: Manifest) -> tuple[str, ...]:
    """The words after `python`: the manifest has a script's name without its ending, and a module's as it is."""
    words = tuple(manifest.argv)
    return ("-m", *words) if words and words[0] == manifest.name else words
