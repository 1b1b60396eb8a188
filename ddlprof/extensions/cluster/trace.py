"""Reads traces of jobs from CSV files with the columns `job_id, submit_s, gpus, duration_s` and optional others
(`_Line`)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import NOT_NEGATIVE, Interval, Length, read_text, settle
from ddlprof.base.text import plain
from ddlprof.base.units import count, listed
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import MAX_GPUS, Cluster
from ddlprof.extensions.cluster.profile import HeldGpus
from ddlprof.instance_catalog import table
from ddlprof.instance_catalog.errors import CatalogError

MAX_FILE_BYTES = 64 * 2**20
"""The largest file that is read: some half a million jobs."""
MAX_SUBMIT_S = 4e9
"""The latest submission: seconds since 1970 fit, and microseconds are not lost to rounding."""
MAX_DURATION_S = 1e9
"""The longest job, 30 years."""
_BATCH_OF_ONE_GPU = ("gavel-", "shockwave-", "muri-", "dally-")
"""Prefixes of the names of published traces whose batch is that of one GPU; in other traces it is the whole job's."""
_ITERATIONS_OF_ONE_GPU = ("gavel-", "shockwave-")
"""Prefixes of the names of traces whose iterations are batches of one GPU, summed over the GPUs."""
_ITERATIONS_ARE_SAMPLES = ("dally-",)
_NAMES_SHOWN = 40
_GAP_S = 1.0
"""The mean gap between drawn submissions where the trace submits all jobs at once; a load then changes it."""


@dataclass(frozen=True)
class _Line:
    """One job. Cells may be empty where there is a default."""

    job_id: Annotated[str, Length(1, 200)]
    submit_s: Annotated[float, Interval(0, MAX_SUBMIT_S)]
    gpus: Annotated[float, Interval(1e-6, MAX_GPUS)]
    trace: Annotated[str, Length(0, 200)] = ""
    model: Annotated[str, Length(1, 200)] | None = None
    batch: Annotated[int, Interval(1, 1e12)] | None = None
    duration_s: Annotated[float, Interval(0, MAX_DURATION_S)] | None = None
    iterations: Annotated[float, NOT_NEGATIVE] | None = None
    start_s: Annotated[float, Interval(0, MAX_SUBMIT_S)] | None = None
    nodes: Annotated[int, Interval(1, MAX_GPUS)] | None = None

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True)
class Trace:
    """The jobs of a trace in the order of its file, and how many lines were changed or left out."""

    name: str
    jobs: list[Job]
    without_duration: int = 0
    """The number of jobs left out because their duration is not known."""
    rounded_up: int = 0
    """The number of jobs that asked for a part of a GPU and get a whole one."""
    past: Sequence[HeldGpus] = ()
    """What the same jobs held on the cluster that they come from."""

    def notes(self) -> list[str]:
        """One sentence for each kind of change to the file's jobs."""
        notes = []
        if self.without_duration:
            notes.append(f"{count(self.without_duration, 'job')} without a duration left out")
        if self.rounded_up:
            notes.append(f"fractions of GPUs rounded up, for {count(self.rounded_up, 'job')}")
        return notes


def split_source(text: str) -> tuple[Path, str | None]:
    """Splits `FILE` or `FILE:NAME`, where NAME is one trace of a file with several."""
    path, _, name = text.rpartition(":")
    return (Path(path), name) if path and name and not Path(text).exists() else (Path(text), None)


def read_trace(path: Path, name: str | None = None) -> list[Job]:
    """The jobs of a trace without the notes of `load_trace`."""
    return load_trace(path, name).jobs


def load_trace(path: Path, name: str | None = None) -> Trace:
    """Reads a trace; `name` picks one of a file that has several.

    Raises `DdlprofError`, in one line that names file and line, for what is no trace.
    """
    seen: set[tuple[str, str]] = set()

    def once(line: _Line) -> None:
        if (line.trace, line.job_id) in seen:
            raise CatalogError(f"job_id: there is a job {line.job_id!r} above")
        seen.add((line.trace, line.job_id))

    with naming(path):
        text = read_text(path, MAX_FILE_BYTES)
    lines = table.parse(text, path, _Line, once, "see docs/cluster.md for the columns of a trace")
    names = list(dict.fromkeys(line.trace for line in lines))
    shown = listed([plain(each) or "one without a name" for each in names], _NAMES_SHOWN)
    if not lines:
        raise UserError(f"{path}: has no jobs")
    if name is None and len(names) > 1:
        raise UserError(f"{path}: has {len(names)} traces; pick one as FILE:NAME: {shown}")
    if name is not None and name not in names:
        raise UserError(f"{path}: has no trace {plain(name)}; it has {shown}")
    chosen = [line for line in lines if name is None or line.trace == name]
    known = [line for line in chosen if line.duration_s]
    if not known:
        raise UserError(f"{path}: no job has a duration (column duration_s, in seconds)")
    return Trace(
        name=chosen[0].trace or path.stem,
        jobs=[_job(line, line.duration_s) for line in known if line.duration_s],
        without_duration=len(chosen) - len(known),
        rounded_up=sum(not line.gpus.is_integer() for line in known),
        past=[HeldGpus(line.submit_s, line.gpus, line.duration_s or 0.0, line.start_s, line.nodes) for line in known],
    )


def _job(line: _Line, duration_s: float) -> Job:
    """A job of a line.

    Without iterations in the trace, one is taken to last a second, as only ratios of work and speed matter.
    """
    gpus = math.ceil(line.gpus)
    batch = line.batch or gpus
    if line.batch is not None and line.trace.startswith(_BATCH_OF_ONE_GPU):
        batch *= gpus
    updates = line.iterations or duration_s
    if line.iterations and line.trace.startswith(_ITERATIONS_OF_ONE_GPU):
        updates /= gpus
    if line.iterations and line.trace.startswith(_ITERATIONS_ARE_SAMPLES):
        updates /= batch
    return Job(
        job_id=line.job_id,
        submit_s=line.submit_s,
        gpus=gpus,
        samples=updates * batch,
        batch=batch,
        step_s=duration_s / updates,
        model=line.model,
    )


def offered_load(jobs: Sequence[Job], cluster: Cluster) -> float | None:
    """The GPU-seconds asked for, as a share of the cluster's GPU-seconds between the first and the last submission.

    None: all jobs are submitted at once, or their durations are not known.
    """
    span_s = max(job.submit_s for job in jobs) - min(job.submit_s for job in jobs)
    asked = [job.ideal_s * job.gpus for job in jobs if job.ideal_s is not None]
    return sum(asked) / (span_s * cluster.gpus) if span_s > 0 and len(asked) == len(jobs) else None


def rescaled(jobs: Sequence[Job], load: float, cluster: Cluster) -> list[Job]:
    """The same jobs, with times between submissions scaled so that the offered load is `load`."""
    present = offered_load(jobs, cluster)
    if present is None:
        raise UserError("the load cannot be changed: all jobs are submitted at once, or their durations are not known")
    if not 0 < load < math.inf:
        raise UserError(f"a load of {load:g}: a positive number is expected; 1 is all GPUs all the time")
    first_s = min(job.submit_s for job in jobs)
    return [replace(job, submit_s=first_s + (job.submit_s - first_s) * present / load) for job in jobs]


def poisson(jobs: Sequence[Job], seed: int) -> list[Job]:
    """The same jobs submitted by a Poisson process: in random order, with exponential gaps of the trace's mean gap."""
    drawn = random.Random(f"arrivals/{seed}")  # the same in every process and version
    first_s, last_s = min(job.submit_s for job in jobs), max(job.submit_s for job in jobs)
    mean_s = (last_s - first_s) / (len(jobs) - 1) if last_s > first_s else _GAP_S
    order = list(jobs)
    drawn.shuffle(order)
    now_s, submitted = 0.0, []
    for job in order:
        submitted.append(replace(job, submit_s=now_s))
        now_s += drawn.expovariate(1 / mean_s)
    return submitted


def fitted(jobs: Sequence[Job], cluster: Cluster, too_large: str | None = None) -> tuple[list[Job], int]:
    """The jobs that the cluster can run, and the number of jobs that were changed or dropped for that.

    A job that asks for more GPUs than there are of any one model is dropped (`drop`), or gets all of these and as much
    more time as it gets fewer GPUs (`cap`). Raises `UserError` that names it if neither is chosen.
    """
    most = cluster.most_of_one_model
    kept: list[Job] = []
    changed = 0
    for job in jobs:
        if job.fewest_gpus <= most:
            kept.append(job)
            continue
        if too_large is None:
            raise UserError(
                f"job {plain(job.job_id)} asks for {count(job.gpus, 'GPU')}, and the cluster has {most}:"
                " give a larger cluster, or --too-large drop or cap"
            )
        changed += 1
        if too_large == "cap" and job.max_gpus is None:
            step_s = None if job.step_s is None else job.step_s * job.gpus / most
            kept.append(replace(job, gpus=most, step_s=step_s))
    if not kept:
        raise UserError(f"no job fits the cluster's {count(most, 'GPU')}")
    return kept, changed
