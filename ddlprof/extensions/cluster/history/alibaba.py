"""Reads the traces of GPUs that Alibaba published at github.com/alibaba/clusterdata.

Of 2020 (PAI, NSDI 2022): `pai_task_table.csv`, and `pai_job_table.csv` for the times of submission; they have no
line of columns. Of 2023 (`openb_pod_list_*.csv`): one row for each pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ddlprof.base.errors import UserError, naming
from ddlprof.extensions.cluster.history.files import cell_number, jobs_in, rows, text_in
from ddlprof.extensions.cluster.history.past import PastJob

_JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_PODS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
NO_TASKS = "jobs of the table of jobs without tasks"


def read(paths: Sequence[Path]) -> tuple[list[PastJob], dict[str, int]]:
    """The jobs of all files together, and what was left out of them. Raises UserError with file and line."""
    submitted: dict[str, tuple[float, str, str]] = {}
    tasks: dict[str, list[PastJob]] = {}
    pods: list[PastJob] = []
    for path in paths:
        text = text_in(path)
        first = text.partition("\n")[0].strip().split(",")
        has_header = first[0] in ("job_name", "name")
        if first[0] == "name":
            pods += jobs_in(path, text, _pod, _PODS, "an openb_pod_list of cluster-trace-gpu-v2023")
        elif len(first) == len(_TASKS):
            _read_tasks(path, text, has_header, tasks)
        elif len(first) == len(_JOBS):
            _read_jobs(path, text, has_header, submitted)
        else:
            raise UserError(
                f"{path}, line 1: neither pai_task_table.csv nor pai_job_table.csv of 2020, nor a list of pods of 2023"
            )
    if submitted and not tasks:
        raise UserError(f"{paths[0]}: the table of jobs does not tell their GPUs: give pai_task_table.csv, too")
    jobs = [_of_tasks(name, found, submitted.get(name)) for name, found in tasks.items()]
    return [*jobs, *pods], {NO_TASKS: len(submitted.keys() - tasks.keys())}


def _read_tasks(path: Path, text: str, has_header: bool, tasks: dict[str, list[PastJob]]) -> None:
    """Each task as if it were a job of its own."""
    for line, row in rows(path, text, None if has_header else _TASKS):
        with naming(f"{path}, line {line}"):
            instances = cell_number(row, "inst_num", 1.0)
            start_s = cell_number(row, "start_time", 0.0) or None
            task = PastJob(
                job_id=row["job_name"],
                submit_s=start_s or 0.0,
                gpus=cell_number(row, "plan_gpu", 0.0) / 100 * instances,
                start_s=start_s,
                end_s=cell_number(row, "end_time", 0.0) or None,
                state=row["status"],
                gpu_model=row["gpu_type"],
            )
        tasks.setdefault(row["job_name"], []).append(task)


def _read_jobs(path: Path, text: str, has_header: bool, jobs: dict[str, tuple[float, str, str]]) -> None:
    for line, row in rows(path, text, None if has_header else _JOBS):
        with naming(f"{path}, line {line}"):
            jobs[row["job_name"]] = (cell_number(row, "start_time", 0.0), row["user"], row["status"])


def _of_tasks(name: str, tasks: Sequence[PastJob], submitted: tuple[float, str, str] | None) -> PastJob:
    """A job of its tasks with GPUs, which hold them together from the first start to the last end."""
    holders = [task for task in tasks if task.gpus] or tasks
    starts = [task.start_s for task in holders if task.start_s is not None]
    ends = [task.end_s for task in holders if task.end_s is not None]
    start_s = min(starts, default=None)
    submit_s, user, state = submitted or (0.0, "", holders[0].state)
    return PastJob(
        job_id=name,
        submit_s=submit_s or start_s or 0.0,
        gpus=round(sum(task.gpus for task in holders), 6),
        start_s=start_s,
        end_s=max(ends) if len(ends) == len(holders) else None,
        state=state,
        user=user,
        gpu_model=holders[0].gpu_model if len({task.gpu_model for task in holders}) == 1 else "",
    )


def _pod(row: Mapping[str, str]) -> PastJob:
    """A pod; `gpu_milli` are the thousandths that it gets of each of its GPUs."""
    return PastJob(
        job_id=row["name"],
        submit_s=cell_number(row, "creation_time"),
        gpus=cell_number(row, "num_gpu", 0.0) * cell_number(row, "gpu_milli", 1000.0) / 1000,
        start_s=cell_number(row, "scheduled_time") if row["scheduled_time"] else None,
        end_s=cell_number(row, "deletion_time") if row["deletion_time"] else None,
        nodes=1,
        state=row.get("pod_phase", ""),
        queue=row.get("qos", ""),
        gpu_model=row.get("gpu_spec", ""),
    )
