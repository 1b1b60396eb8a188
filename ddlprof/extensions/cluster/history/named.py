"""Reads CSV files with named columns, in the spellings that are common, or as the caller names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddlprof.base.errors import UserError, naming
from ddlprof.extensions.cluster.history.files import Wrong, cell_number, rows, text_in
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.times import moment, seconds

SPELLINGS = {
    "job_id": ("job_id", "jobid", "id", "job"),
    "submit": ("submit", "submit_s", "submitted", "submit_time", "submitted_time", "queued_at", "created_at"),
    "start": ("start", "start_s", "started", "start_time", "started_at"),
    "end": ("end", "end_s", "ended", "end_time", "ended_at", "finished_at"),
    "duration": ("duration", "duration_s", "elapsed", "run_time", "runtime"),
    "gpus": ("gpus", "num_gpus", "gpu_num", "n_gpus", "gpu_count", "num_gpu"),
    "nodes": ("nodes", "num_nodes", "node_num", "nnodes"),
    "user": ("user", "user_name"),
    "name": ("name", "job_name", "jobname"),
    "queue": ("queue", "partition", "vc", "namespace"),
    "state": ("state", "status"),
    "model": ("model",),
    "gpu_model": ("gpu_model", "gpu_type"),
}
"""What is read, and how columns are called that hold it, in any case."""
_NEEDED = ("submit", "gpus")


def read(path: Path, named: Mapping[str, str]) -> list[PastJob]:
    """The jobs of a file; `named` are the columns that the caller names, by what they hold.

    Raises UserError with file and line.
    """
    jobs: list[PastJob] = []
    columns: dict[str, str] = {}
    for number, (line, row) in enumerate(rows(path, text_in(path))):
        columns = columns or _columns(path, list(row), named)
        with naming(f"{path}, line {line}"):
            jobs.append(_job({what: row[column] for what, column in columns.items()}, str(number + 1)))
    if not jobs:
        raise UserError(f"{path}: has no jobs")
    return jobs


def _columns(path: Path, header: list[str], named: Mapping[str, str]) -> dict[str, str]:
    by_name = {name.lower(): name for name in header}
    found: dict[str, str] = {}
    for what, spellings in SPELLINGS.items():
        if what in named:
            if named[what] not in header:
                raise UserError(f"{path}, line 1: no column {named[what]!r}, which --columns names for {what}")
            found[what] = named[what]
        elif there := [by_name[each] for each in spellings if each in by_name]:
            found[what] = there[0]
    for what in _NEEDED:
        if what not in found:
            raise UserError(
                f"{path}, line 1: no column for {what} ({', '.join(SPELLINGS[what])}): name it, --columns {what}=COLUMN"
            )
    if "duration" not in found and not {"start", "end"} <= found.keys():
        raise UserError(
            f"{path}, line 1: no column for duration, nor for start and end: name it, --columns start=COLUMN"
        )
    return found


def _job(row: Mapping[str, str], number: str) -> PastJob:
    submit_s = moment(row["submit"], "submit")
    if submit_s is None:
        raise Wrong(f"submit: {row['submit']!r} is no date and no number of seconds")
    start_s, end_s = moment(row.get("start", ""), "start"), moment(row.get("end", ""), "end")
    held_s = seconds(row.get("duration", ""), "duration")
    return PastJob(
        job_id=row.get("job_id") or number,
        submit_s=submit_s,
        gpus=cell_number(row, "gpus"),
        start_s=start_s,
        end_s=end_s,
        held_s=held_s,
        nodes=int(cell_number(row, "nodes")) or None,
        state=row.get("state", ""),
        user=row.get("user", ""),
        name=row.get("name", ""),
        queue=row.get("queue", ""),
        model=row.get("model", ""),
        gpu_model=row.get("gpu_model", ""),
    )
