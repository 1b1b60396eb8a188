"""What a cluster is like, for `cluster import` and at the top of the page of `cluster simulate`: words, JSON, tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import count, duration, percent, significant
from ddlprof.extensions.cluster.history.past import COLUMNS, KeptHistory, PastJob
from ddlprof.extensions.cluster.profile import ClusterProfile, HeldGpus, SizeLine, profile
from ddlprof.report.json_csv import csv_text
from ddlprof.report.table import Column, Table, fields
from ddlprof.report.text import labelled

HISTORY_SCHEMA_VERSION = 1
_WIDTH = 100
_labelled = partial(labelled, width=_WIDTH)


@dataclass(frozen=True)
class HistoryData:
    """A history of a cluster in figures."""

    name: str
    cluster: ClusterProfile
    notes: list[str]
    """What was left out or joined, and what figures rest on, one line each."""
    schema: int = field(default=HISTORY_SCHEMA_VERSION)


def build(name: str, history: KeptHistory, gpus: int | None) -> HistoryData:
    """The figures of a history that has jobs; `gpus` of the cluster, None: the most that were held at once."""
    found = profile([_held(job) for job in history.jobs], gpus)
    return HistoryData(name, found, [*history.notes(), *rests_on(found, gpus)])


def _held(job: PastJob) -> HeldGpus:
    return HeldGpus(job.submit_s, job.gpus, job.duration_s or 0.0, job.start_s, job.nodes)


def rests_on(found: ClusterProfile, gpus: int | None) -> Iterator[str]:
    """What figures rest on that nobody has told, one line each."""
    held = significant(found.gpus, 4)
    if found.wait_median_s is None:
        yield "not every job tells when it started, so waits and idle GPUs are not known"
    if found.most_at_once is not None and gpus is not None and found.most_at_once > gpus:
        yield f"jobs held {held} GPUs at once, more than the {gpus:,} that are said: figures of the past are for {held}"
    elif not found.gpus_are_known and found.most_at_once is not None:
        yield f"the cluster is taken to have the {held} GPUs that jobs held at once; --gpus says how many it has"


def as_csv(jobs: Sequence[PastJob]) -> str:
    """The jobs as `cluster simulate` reads them, ending with a line end."""
    return Table[PastJob](*fields(*COLUMNS)).csv(jobs)


def waits_csv(jobs: Sequence[PastJob]) -> str:
    """The waits that ended with several GPUs of one machine, as `cluster advise --history` reads them.

    A history does not tell which machines share a rack, so waits for one rack are not known.
    """
    found = [
        (int(job.gpus), "machine", job.start_s - job.submit_s)
        for job in jobs
        if job.nodes == 1 and job.gpus > 1 and float(job.gpus).is_integer() and job.start_s is not None
    ]
    return csv_text(("gpus", "level", "waited_s"), found)


def render(data: HistoryData) -> str:
    """The page as text, ending with a line end."""
    found = data.cluster
    lines = [*_labelled("ddlprof", f"cluster import {data.name} · {' · '.join(described(found))}"), ""]
    for label, text in facts(found):
        lines += labelled(label, text, width=_WIDTH, indent=12)
    lines += ["", *sizes(found).lines(found.sizes)]
    if data.notes:
        lines.append("")
    for note in data.notes:
        lines += _labelled("Note", note)
    return text_of(lines)


def described(found: ClusterProfile) -> Iterator[str]:
    """The jobs in a few words each."""
    yield count(found.jobs, "job")
    yield f"{significant(found.gpu_hours, 4)} GPU-hours"
    yield f"submitted within {duration(found.span_s)}"


def facts(found: ClusterProfile) -> Iterator[tuple[str, str]]:
    """What is known of load, waits, idle GPUs and fragmentation: a name and a sentence each."""
    if found.load is not None:
        yield "Load", f"{significant(found.load, 2)}: jobs asked for so much of the time of {_gpus(found)}"
    if found.wait_median_s is not None and found.wait_p95_s is not None and found.wait_mean_s is not None:
        yield (
            "Waits",
            f"median {duration(found.wait_median_s)}, mean {duration(found.wait_mean_s)},"
            f" 95th percentile {duration(found.wait_p95_s)}",
        )
    if found.idle is not None:
        yield "Idle", f"{percent(found.idle)} of the GPU time, from the first submission to the last"
    if found.idle_while_one_fits is not None:
        yield (
            "Fragments",
            f"{percent(found.idle_while_one_fits)} of the GPU time was idle although a job waited that asked for no"
            " more GPUs than were free: they lay on too many machines, or were kept for others",
        )
    if found.spread is not None:
        yield (
            "Spread",
            f"{percent(found.spread)} of the jobs with several GPUs had them on more machines than they needed, of"
            f" {count(found.gpus_per_machine or 0, 'GPU')} each",
        )


def tiles(found: ClusterProfile) -> Iterator[tuple[str, str, str]]:
    """What a page shows first: a name, a figure, and a few words below it."""
    if found.load is not None:
        yield "Load", significant(found.load, 2), f"of {_gpus(found)}"
    if found.wait_median_s is not None and found.wait_p95_s is not None:
        yield "Wait", duration(found.wait_median_s), f"median; 95th percentile {duration(found.wait_p95_s)}"
    if found.idle is not None:
        yield "Idle", percent(found.idle), "of the GPU time"
    if found.idle_while_one_fits is not None:
        yield "Fragmentation", percent(found.idle_while_one_fits), "of the GPU time idle while a job waited that fits"
    if found.spread is not None:
        yield "Spread", percent(found.spread), "of jobs on more machines than needed"
    largest = max(found.sizes, key=lambda line: line.gpu_hours)
    share = percent(largest.gpu_hours / found.gpu_hours) if found.gpu_hours else "-"
    yield "Most GPU-hours", f"{_range(largest)} GPUs", f"{share}, in {percent(largest.jobs / found.jobs)} of the jobs"
    yield "Jobs", f"{found.jobs:,}", f"within {duration(found.span_s)}"


def read_with(found: ClusterProfile) -> Iterator[str]:
    """How the figures of a page are to be read, one sentence each."""
    if found.wait_median_s is None:
        yield "The trace does not tell when jobs started (column start_s), so waits and idle GPUs are not known."
        return
    yield (
        "Idle and fragmentation are over the time from the first to the last submission. GPUs that are idle while a job"
        " waits that asks for no more are on too many machines, or kept for others."
    )
    if not found.gpus_are_known:
        yield f"Jobs held {_gpus(found)} at once, more than the cluster of the simulation has: figures are for as many."


def _gpus(found: ClusterProfile) -> str:
    return f"{significant(found.gpus, 4)} GPUs"


def sizes(found: ClusterProfile) -> Table[SizeLine]:
    """The table of the classes of jobs."""
    return Table(
        Column("GPUS", _range, words=True),
        Column("JOBS", "jobs"),
        Column("OF JOBS", lambda line: percent(line.jobs / found.jobs)),
        Column("OF GPU-HOURS", lambda line: percent(line.gpu_hours / found.gpu_hours) if found.gpu_hours else None),
        Column("RUN (MEDIAN)", lambda line: duration(line.duration_median_s)),
        Column("WAIT (MEDIAN)", lambda line: None if line.wait_median_s is None else duration(line.wait_median_s)),
    )


def _range(line: SizeLine) -> str:
    if line.most is None:
        return f"{line.least} and more"
    return str(line.most) if line.most == line.least else f"{line.least}-{line.most}"
