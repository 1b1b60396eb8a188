"""Reads Helios, the clusters of SenseTime (SC 2021): `cluster_log.csv` of github.com/S-Lab-System-Group/HeliosData."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddlprof.extensions.cluster.history.files import Wrong, cell_number, jobs_in, text_in
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.times import moment

_COLUMNS = ("job_id", "gpu_num", "state", "submit_time", "start_time", "end_time")


def read(path: Path) -> list[PastJob]:
    """The jobs of a file. Raises UserError with file and line."""
    return jobs_in(path, text_in(path), _job, _COLUMNS, "a cluster_log.csv of HeliosData")


def _job(row: Mapping[str, str]) -> PastJob:
    submit_s = moment(row["submit_time"], "submit_time")
    if submit_s is None:
        raise Wrong("submit_time is empty")
    return PastJob(
        job_id=row["job_id"],
        submit_s=submit_s,
        gpus=cell_number(row, "gpu_num", 0.0),
        start_s=moment(row["start_time"], "start_time"),
        end_s=moment(row["end_time"], "end_time"),
        nodes=int(cell_number(row, "node_num", 0.0)) or None,
        state=row["state"],
        user=row.get("user", ""),
        queue=row.get("vc", ""),
    )
