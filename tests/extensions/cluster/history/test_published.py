"""Philly, Helios and Alibaba in the forms in which they were published, and tables with named columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.history import files
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.read import read_history
from ddlprof.extensions.cluster.report.profile import as_csv
from ddlprof.extensions.cluster.trace import load_trace

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,16,64,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:42:27,2020-06-09 18:45:36,189,60
1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""
TASKS = """j1,ps,1.0,Terminated,1000.0,1600.0,600.0,29.3,,
j1,worker,2.0,Terminated,1010.0,1610.0,400.0,29.3,50.0,T4
j2,tensorflow,1.0,Failed,2000.0,2100.0,600.0,29.3,25.0,MISC
j3,tensorflow,1.0,Running,2000.0,,600.0,29.3,100.0,V100
j4,tensorflow,1.0,Terminated,2000.0,2100.0,600.0,29.3,,
"""
JOBS = """j1,i1,u1,Terminated,900.0,1611.0
j2,i2,u2,Failed,1900.0,2101.0
j9,i9,u9,Waiting,1900.0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,460,,LS,Running,100,12537496,100.0
openb-pod-0001,6000,12288,2,1000,V100M16,LS,Failed,200,500,300.0
openb-pod-0002,6000,12288,1,1000,,LS,Pending,200,,
"""


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": f"m{number}", "gpus": [f"gpu{each}" for each in range(many)]} for number, many in enumerate(gpus)]
    return {"start_time": start and f"2017-10-07 {start}", "end_time": end and f"2017-10-07 {end}", "detail": detail}


def philly(job: str, *attempts: dict[str, Any], status: str = "Pass") -> dict[str, Any]:
    return {
        "status": status, "vc": "ee9e8c", "jobid": job, "attempts": list(attempts), "user": "ce2f4c",
        "submitted_time": "2017-10-07 01:00:00",
    }  # fmt: skip


def read(kind: str, path: Path, text: str, **how: Any) -> tuple[dict[str, PastJob], list[str]]:
    path.write_text(text)
    found = read_history(kind, [path], **how)
    return {job.job_id: job for job in found.jobs}, found.notes()


def test_philly(tmp_path: Path) -> None:
    entries = [
        philly("twice", attempt("01:10:00", "01:20:00", 8), attempt("01:30:00", "02:30:00", 8, 8)),
        philly("lost", attempt(None, None, 1), attempt("01:10:00", "01:20:00", 1), status="Killed"),
        philly("going", attempt("01:10:00", "01:20:00", 1), attempt("02:00:00", None, 1)),
        philly("never"),
        philly("text", attempt("01:10:00", "01:20:00", 2), attempt("None", "None", 2)),
    ]
    entries[4]["attempts"][1].update(start_time="None", end_time="None")
    found, notes = read("philly", tmp_path / "log", json.dumps(entries))
    assert {name: (job.gpus, job.duration_s, job.nodes, job.starts) for name, job in found.items()} == {
        "twice": (16, 4200, 2, 2),
        "lost": (1, 600, 1, 1),
        "text": (2, 600, 1, 1),
    }
    twice = found["twice"]
    assert (twice.start_s, twice.queue, twice.state) == (twice.submit_s + 600, "ee9e8c", "Pass")
    assert notes == [
        "left out jobs that still run: their length is not known: 1",
        "left out jobs that never started, or still wait: 1",
        "started more than once, their times added: 1 job",
    ]


def test_helios(tmp_path: Path) -> None:
    found, notes = read("helios", tmp_path / "cluster_log.csv", HELIOS)
    assert {name: (job.gpus, job.duration_s, job.nodes) for name, job in found.items()} == {
        "1425511": (1, 36848, 1),
        "1425512": (16, 189, 2),
    }
    assert notes == ["left out jobs without GPUs: 1"]
    found, notes = read("helios", tmp_path / "cluster_log.csv", HELIOS, queues=["vchbv"])
    assert list(found) == ["1425512"]
    assert notes == ["left out jobs of other queues: 2"]


def test_alibaba_of_2020_joins_tasks_and_takes_submissions_from_jobs(tmp_path: Path) -> None:
    for name, text in (("pai_task_table.csv", TASKS), ("pai_job_table.csv", JOBS)):
        (tmp_path / name).write_text(text)
    both = [tmp_path / "pai_job_table.csv", tmp_path / "pai_task_table.csv"]
    found = read_history("alibaba", both)
    jobs = {job.job_id: job for job in found.jobs}
    assert {name: (job.submit_s, job.start_s, job.gpus, job.duration_s) for name, job in jobs.items()} == {
        "j1": (900, 1010, 1, 600),
        "j2": (1900, 2000, 0.25, 100),
    }
    assert (jobs["j1"].gpu_model, jobs["j1"].user) == ("T4", "u1")
    assert found.notes() == [
        "left out jobs that still run: their length is not known: 1",
        "left out jobs without GPUs: 1",
        "left out jobs of the table of jobs without tasks: 1",
    ]
    alone = read_history("alibaba", both[1:])
    assert alone.jobs[0].submit_s == alone.jobs[0].start_s == 1010
    with pytest.raises(UserError, match=r"pai_job_table\.csv: .* give pai_task_table\.csv"):
        read_history("alibaba", both[:1])


def test_alibaba_of_2023(tmp_path: Path) -> None:
    found, notes = read("alibaba", tmp_path / "openb_pod_list_default.csv", PODS)
    assert {name: (job.gpus, job.start_s, job.duration_s) for name, job in found.items()} == {
        "openb-pod-0000": (0.46, 100, 12537396),
        "openb-pod-0001": (2, 300, 200),
    }
    assert notes == ["left out jobs that never started, or still wait: 1"]


def test_named_columns(tmp_path: Path) -> None:
    text = "Name,Queued,Begin,Took,Cards\na,2026-11-02T10:00:00,2026-11-02T10:10:00,1-02:03:04,8\nb,,,,1\n"
    columns = {"job_id": "Name", "submit": "Queued", "start": "Begin", "duration": "Took", "gpus": "Cards"}
    with pytest.raises(UserError, match=r"jobs\.csv, line 3: submit: '' is no date"):
        read("csv", tmp_path / "jobs.csv", text, columns=columns)
    found, _ = read("csv", tmp_path / "jobs.csv", text.replace("b,,,,1\n", ""), columns=columns)
    assert (found["a"].gpus, found["a"].duration_s) == (8, 93784)
    found, _ = read("csv", tmp_path / "jobs.csv", "id,Submitted,started_at,ended_at,num_gpus\n7,0,60,120,2\n")
    assert (found["7"].start_s, found["7"].duration_s) == (60, 60)


def test_every_job_that_is_kept_can_be_simulated(tmp_path: Path) -> None:
    long = "x" * 300
    text = f"id,submit,gpus,duration\n,0,1,9\n,0,1,9\n{long},0,1,9\n{long},0,1,9\na,0,1e9,9\nb,0,1,1e12\n"
    found, notes = read("csv", tmp_path / "jobs.csv", text.replace("1e12", "1000000000001"))
    assert {name[:6]: len(name) for name in found} == {"1": 1, "2": 1, "xxxxxx": 182}
    assert notes == ["left out jobs that cannot be, as of more than a million GPUs or 30 years: 2"]
    (tmp_path / "jobs.csv").write_text(as_csv(list(found.values())))
    assert len(load_trace(tmp_path / "jobs.csv").jobs) == 4


def test_our_own_file_comes_back_as_it_was(tmp_path: Path) -> None:
    first, _ = read("helios", tmp_path / "cluster_log.csv", HELIOS)
    again, _ = read("csv", tmp_path / "jobs.csv", as_csv(list(first.values())))
    assert [(j.submit_s, j.start_s, j.duration_s, j.gpus, j.nodes, j.queue) for j in again.values()] == [
        (j.submit_s, j.start_s, j.duration_s, j.gpus, j.nodes, j.queue) for j in first.values()
    ]


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("philly", "{}", "line 1: a list of jobs is expected"),
        ("philly", "[1]", "job 1: an object is expected, not 1"),
        ("philly", json.dumps([{**philly("a"), "attempts": [{"detail": [{"gpus": 8}]}]}]),
         "job 1: attempts[0].detail[0].gpus: a list is expected, not 8"),
        ("philly", json.dumps([philly("a"), {**philly("b"), "submitted_time": "x"}]), "job 2: submitted_time: 'x'"),
        ("philly", "[\n{", "line 2"),
        ("helios", "job_id,gpu_num\n1,2\n", "line 1: no column state"),
        ("helios", HELIOS.replace("16,64,2", "many,64,2"), "line 3: gpu_num: 'many' is no number"),
        ("helios", HELIOS.replace("16,64,2", "16,2"), "line 3: 11 cells under 12 columns"),
        ("alibaba", "a,b,c\n", "line 1: neither pai_task_table.csv nor"),
        ("alibaba", TASKS.replace("2100.0", "x"), "line 3: end_time: 'x' is no number"),
        ("alibaba", PODS.replace("500,300.0", "500,x"), "line 3: scheduled_time: 'x' is no number"),
        ("csv", "gpus,duration\n1,2\n", "line 1: no column for submit"),
        ("csv", "submit,gpus\n1,2\n", "line 1: no column for duration, nor for start and end"),
        ("csv", "submit,gpus,duration\n1,-2,5\n", "line 2: gpus: '-2' is no number"),
        ("csv", f"submit,gpus,duration\n1,2,{'9' * 400}\n", "line 2: duration: '99"),
        ("csv", "submit,gpus,duration\n", "has no jobs"),
        ("csv", "submit,gpus,duration\n1,0,5\n", "no job ran on GPUs and ended (left out jobs without GPUs: 1)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(kind: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(says)) as error:
        read(kind, tmp_path / "a.csv", text)
    assert str(error.value).startswith(str(tmp_path / "a.csv"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "header", "row"),
    [
        ("csv", "submit,gpus,duration\n", "1,2,3\n"),
        ("sacct", "JobID|Submit|Start|End|State|AllocTRES\n", "1|1|2|3||\n"),
    ],
)
def test_more_jobs_than_fit_into_memory_are_refused(
    kind: str, header: str, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_ROWS", 3)
    with pytest.raises(UserError, match=r", line 5: more than 3 jobs are not read: name a file with a part of them"):
        read(kind, tmp_path / "a.csv", header + 4 * row)


def test_more_values_than_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_VALUES", 100)
    for kind in ("philly", "kubernetes"):
        with pytest.raises(UserError, match="not read: it holds more than 100 values"):
            read(kind, tmp_path / "a.json", "[" + "[]," * 60 + "[]]")
