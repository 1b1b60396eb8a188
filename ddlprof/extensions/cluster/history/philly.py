"""Reads Philly, Microsoft's clusters of 2017 (ATC 2019): `cluster_job_log` of github.com/msr-fiddle/philly-traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import decode
from ddlprof.extensions.cluster.history.files import Wrong, json_in
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.times import moment


@dataclass(frozen=True)
class _Machine:
    gpus: tuple[Any, ...]


@dataclass(frozen=True)
class _Attempt:
    detail: tuple[_Machine, ...]
    start_time: str = ""
    end_time: str = ""


@dataclass(frozen=True)
class _Entry:
    """A job as the file has it; what is not known is null there, or the text None."""

    submitted_time: str
    attempts: tuple[_Attempt, ...]
    jobid: str
    status: str = ""
    user: str = ""
    vc: str = ""


def read(path: Path) -> list[PastJob]:
    """The jobs of a file. Raises UserError with the file and the number of the job."""
    found = json_in(path)
    if not isinstance(found, list):
        raise UserError(f"{path}, line 1: a list of jobs is expected, as in cluster_job_log of philly-traces")
    jobs = []
    for number, entry in enumerate(found, 1):
        with naming(f"{path}, job {number}"):
            jobs.append(_job(decode(_Entry, entry)))
    return jobs


def _job(entry: _Entry) -> PastJob:
    submit_s = moment(entry.submitted_time, "submitted_time")
    if submit_s is None:
        raise Wrong("submitted_time is empty")
    held_s, gpus, nodes = 0.0, 0, 0
    first_s: float | None = None
    still_runs = False
    starts = 0
    for attempt in entry.attempts:
        start_s, end_s = moment(attempt.start_time, "start_time"), moment(attempt.end_time, "end_time")
        gpus = max(gpus, sum(len(machine.gpus) for machine in attempt.detail))
        nodes = max(nodes, len(attempt.detail))
        still_runs = start_s is not None and end_s is None
        if start_s is None or end_s is None:
            continue
        first_s = start_s if first_s is None else min(first_s, start_s)
        held_s += end_s - start_s
        starts += 1
    return PastJob(
        job_id=entry.jobid,
        submit_s=submit_s,
        gpus=gpus,
        start_s=first_s if first_s is not None or not still_runs else submit_s,
        held_s=None if still_runs or first_s is None else held_s,
        nodes=nodes or None,
        starts=max(starts, 1),
        state=entry.status,
        user=entry.user,
        queue=entry.vc,
    )
