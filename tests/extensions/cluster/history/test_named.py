"""Tables with named columns, and what holds for histories of all kinds."""

from __future__ import annotations

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


def read(kind: str, path: Path, text: str, **how: Any) -> tuple[dict[str, PastJob], list[str]]:
    path.write_text(text)
    found = read_history(kind, [path], **how)
    return {job.job_id: job for job in found.jobs}, found.notes()


def test_named_columns(tmp_path: Path) -> None:
    text = "Name,Queued,Begin,Took,Cards\na,2026-11-02T10:00:00,2026-11-02T10:10:00,1-02:03:04,8\nb,,,,1\n"
    columns = {"job_id": "Name", "submit": "Queued", "start": "Begin", "duration": "Took", "gpus": "Cards"}
    with pytest.raises(UserError, match=r"jobs\.csv, line 3: submit: '' is no date"):
        read("csv", tmp_path / "jobs.csv", text, columns=columns)
    found, _ = read("csv", tmp_path / "jobs.csv", text.replace("b,,,,1\n", ""), columns=columns)
    assert (found["a"].gpus, found["a"].duration_s) == (8, 93784)
    found, _ = read("csv", tmp_path / "jobs.csv", "id,Submitted,started_at,ended_at,num_gpus\n7,0,60,120,2\n")
    assert (found["7"].start_s, found["7"].duration_s) == (60, 60)


def test_only_the_jobs_of_some_queues(tmp_path: Path) -> None:
    text = "id,submit,gpus,duration,partition\n1,0,1,9,a\n2,0,1,9,b\n3,0,0,9,a\n"
    found, notes = read("csv", tmp_path / "jobs.csv", text, queues=["a"])
    assert list(found) == ["1"]
    assert notes == ["left out jobs of other queues: 1", "left out jobs without GPUs: 1"]


def test_every_job_that_is_kept_can_be_simulated(tmp_path: Path) -> None:
    long = "x" * 300
    text = f"id,submit,gpus,duration\n,0,1,9\n,0,1,9\n{long},0,1,9\n{long},0,1,9\na,0,1e9,9\nb,0,1,1e12\n"
    found, notes = read("csv", tmp_path / "jobs.csv", text.replace("1e12", "1000000000001"))
    assert {name[:6]: len(name) for name in found} == {"1": 1, "2": 1, "xxxxxx": 182}
    assert notes == ["left out jobs that cannot be, as of more than a million GPUs or 30 years: 2"]
    (tmp_path / "jobs.csv").write_text(as_csv(list(found.values())))
    assert len(load_trace(tmp_path / "jobs.csv").jobs) == 4


def test_our_own_file_comes_back_as_it_was(tmp_path: Path) -> None:
    text = "id,submit,start,end,gpus,nodes,vc\n1,2020-06-09 18:41:27,2020-06-09 18:42:27,2020-06-09 18:45:36,16,2,a\n"
    first, _ = read("csv", tmp_path / "cluster_log.csv", text)
    again, _ = read("csv", tmp_path / "jobs.csv", as_csv(list(first.values())))
    assert [(j.submit_s, j.start_s, j.duration_s, j.gpus, j.nodes, j.queue) for j in again.values()] == [
        (j.submit_s, j.start_s, j.duration_s, j.gpus, j.nodes, j.queue) for j in first.values()
    ]


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("csv", "gpus,duration\n1,2\n", "line 1: no column for submit"),
        ("csv", "submit,gpus\n1,2\n", "line 1: no column for duration, nor for start and end"),
        ("csv", "submit,gpus,duration\n1,-2,5\n", "line 2: gpus: '-2' is no number"),
        ("csv", f"submit,gpus,duration\n1,2,{'9' * 400}\n", "line 2: duration: '99"),
        ("csv", "submit,gpus,duration\n1,2\n", "line 2: 2 cells under 3 columns"),
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
    with pytest.raises(UserError, match="not read: it holds more than 100 values"):
        read("kubernetes", tmp_path / "a.json", "[" + "[]," * 60 + "[]]")
