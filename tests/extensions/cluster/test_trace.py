"""Traces from files: what the columns mean, and one line for what is no trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddlprof.base.errors import DdlprofError
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.trace import fitted, load_trace, offered_load, read_trace, rescaled, split_source

HEADER = "trace,job_id,submit_s,gpus,model,batch,duration_s,iterations,status,extra\n"


def written(tmp_path: Path, *lines: str, header: str = HEADER) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return path


def refused(path: Path, name: str | None = None) -> str:
    with pytest.raises(DdlprofError) as caught:
        load_trace(path, name)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


@pytest.mark.parametrize(
    ("line", "batch", "updates"),
    [
        ("mine,a,5,4,m,32,100,50,,", 32, 50.0),
        ("pollux-1,a,5,4,m,32,100,50,,", 32, 50.0),
        ("gavel-x,a,5,4,m,32,100,50,,", 128, 12.5),
        ("muri-x,a,5,4,m,32,100,50,,", 128, 50.0),
        ("dally-x,a,5,4,m,32,100,6400,,", 128, 50.0),
        ("philly-x,a,5,4,,,100,,,", 4, 100.0),
        ("itp-x,a,5,4,m,32,100,,,", 32, 100.0),
    ],
)
def test_work_and_speed_give_the_duration_in_every_family(
    tmp_path: Path, line: str, batch: int, updates: float
) -> None:
    (job,) = read_trace(written(tmp_path, line))
    assert (job.submit_s, job.gpus, job.batch, job.samples) == (5, 4, batch, updates * batch)
    assert job.ideal_s == pytest.approx(100)


def test_what_is_left_out_or_rounded_is_counted(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, "t,a,0,1,,,,,,", "t,b,0,0.25,,,7,,,", "t,c,0,1,,,0,,,"))
    assert [(job.job_id, job.gpus) for job in trace.jobs] == [("b", 1)]
    assert (trace.without_duration, trace.rounded_up) == (2, 1)
    assert trace.notes() == [
        "2 jobs without a duration left out",
        "fractions of GPUs rounded up, for 1 job",
    ]


def test_a_name_picks_one_trace_of_several(tmp_path: Path) -> None:
    path = written(tmp_path, "x,a,0,1,,,10,,,", "y,a,0,2,,,10,,,", "y,b,0,2,,,10,,,")
    assert [job.gpus for job in read_trace(path, "y")] == [2, 2]
    assert "has 2 traces; pick one as FILE:NAME: x, y" in refused(path)
    assert "no trace z; it has x, y" in refused(path, "z")
    assert split_source(f"{path}:y") == (path, "y")
    assert split_source(str(path)) == (path, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("t,a,-5,1,,,10,,,", "line 2: submit_s: a number from 0 to 4000000000 is expected, not -5"),
        ("t,a,nan,1,,,10,,,", "submit_s: a number from 0"),
        ("t,a,0,0,,,10,,,", "gpus: a number from 1e-06 to 1000000 is expected, not 0"),
        ("t,a,0,9e99,,,10,,,", "gpus: "),
        ("t,a,0,1,,,-1,,,", "duration_s: "),
        ("t,a,0,1,,,inf,,,", "duration_s: "),
        ("t,a,0,1,,,1e30,,,", "duration_s: "),
        ("t,a,0,1,,1.5,10,,,", "batch: "),
        ("t,a,0,1,,0,10,,,", "batch: "),
        ("t,a,0,one,,,10,,,", "gpus: "),
        ("t,,0,1,,,10,,,", "a cell that must be filled is empty"),
        ("t,a,0,1,,", "6 cells under 10 columns"),
        ("t,a,0,1,,,,,,", "no job has a duration"),
        ("t,a,0,1,,,10,,,\nt,a,3,1,,,10,,,", "line 3: job_id: there is a job 'a' above"),
        ("t,a,0,1,,,10,," + "x" * 200_000 + ",", "line 2: "),
        ("\x00", "line 2: "),
    ],
)
def test_a_line_that_is_no_job_is_told_by_its_number(tmp_path: Path, line: str, said: str) -> None:
    assert said in refused(written(tmp_path, line))


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    assert "has no jobs" in refused(written(tmp_path))
    assert "no column job_id" in refused(written(tmp_path, header="a,b\n"))
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in refused(tmp_path / "trace.csv")
    assert "No such file" in refused(tmp_path / "none.csv")
    assert "is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert "is a FIFO" in refused(tmp_path / "fifo")


def test_the_offered_load_is_what_was_asked_for() -> None:
    cluster = parse_cluster("2x4")
    jobs = [Job(str(n), 50.0 + 100 * n, 4, samples=60, batch=1, step_s=1.0) for n in range(5)]
    assert offered_load(jobs, cluster) == pytest.approx(5 * 240 / (400 * 8))
    stretched = rescaled(jobs, 0.9, cluster)
    assert offered_load(stretched, cluster) == pytest.approx(0.9)
    assert stretched[0].submit_s == 50
    assert [job.job_id for job in stretched] == [job.job_id for job in jobs]
    for wrong in ([jobs[0]], [Job("a", 0, 1, 1, 1), Job("b", 9, 1, 1, 1)]):
        with pytest.raises(DdlprofError, match="the load cannot be changed"):
            rescaled(wrong, 0.9, cluster)
    with pytest.raises(DdlprofError, match="a load of 0"):
        rescaled(jobs, 0, cluster)


def test_a_job_larger_than_the_cluster_is_refused_dropped_or_capped() -> None:
    cluster = parse_cluster("2x4:V100,1x4:T4")
    large, small = Job("big", 0, 16, 100, 1, 1.0), Job("small", 0, 2, 100, 1, 1.0)
    with pytest.raises(DdlprofError, match="job big asks for 16 GPUs, and the cluster has 8"):
        fitted([small, large], cluster)
    assert fitted([small, large], cluster, "drop") == ([small], 1)
    (_, capped), changed = fitted([small, large], cluster, "cap")
    assert (capped.gpus, changed) == (8, 1)
    assert capped.ideal_s == 200, "half the GPUs take twice as long"
    with pytest.raises(DdlprofError, match="no job fits"):
        fitted([large], cluster, "drop")
    elastic = Job("e", 0, 16, 100, 1, 1.0, min_gpus=2, max_gpus=16)
    assert fitted([elastic], cluster) == ([elastic], 0)
