"""What Slurm remembers. `sacct.txt` is what a real Slurm 22.05 (Debian's packages) printed of jobs on four nodes that
were said to have eight GPUs each; scripts/lab/slurm_history.sh makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.read import read_history

REAL = Path(__file__).with_name("sacct.txt")
HEAD = "JobID|JobName|User|Submit|Start|End|State|AllocTRES|NNodes"


def jobs(path: Path, *lines: str, head: str = HEAD) -> dict[str, PastJob]:
    path.write_text("\n".join([head, *lines]) + "\n")
    return {job.job_id: job for job in read_history("sacct", [path]).jobs}


def line(job: str = "1", start: str = "10:00:00", end: str = "11:00:00", **other: str) -> str:
    cells = {"submit": "10:00:00", "state": "COMPLETED", "tres": "cpu=8,gres/gpu:a100=8,gres/gpu=8,node=1", **other}

    def date(text: str) -> str:
        return f"2026-11-02T{text}" if re.match(r"\d\d:", text) else text

    times = "|".join(date(each) for each in (cells["submit"], start, end))
    return f"{job}|train|ann|{times}|{cells['state']}|{cells['tres']}|1"


def test_a_real_history() -> None:
    found = read_history("sacct", [REAL])
    by_id = {job.job_id: job for job in found.jobs}
    assert by_id.keys() == {"1", "2", "3", "4_1", "4_2", "4_3", "4_4", "5", "7", "9", "10", "16"}
    told = {job.name: (job.gpus, job.duration_s, job.nodes, job.state) for job in found.jobs}
    assert told["bert"] == (16, 10, 2, "COMPLETED")
    assert told["evaluate"] == (1, 3, 1, "FAILED")
    assert told["ended"] == (8, 9, 1, "CANCELLED")
    assert told["slow"] == (2, 67, 1, "TIMEOUT")
    assert told["mixed"] == (6, 7, None, "COMPLETED")  # 4 and 2 GPUs, perhaps of one machine
    again = by_id["9"]
    assert (again.starts, again.duration_s, again.state) == (2, 5 + 8, "COMPLETED")
    assert again.start_s is not None
    assert again.start_s - again.submit_s == 7
    assert {job.gpu_model for job in found.jobs} == {"a100"}
    assert found.notes() == [
        "left out jobs without GPUs: 1",
        "left out jobs that never started, or still wait: 1",
        "left out jobs that still run: their length is not known: 1",
        "left out steps of jobs: 16",
        "started more than once, their times added: 1 job",
    ]


def test_columns_in_any_order_and_more_of_them(tmp_path: Path) -> None:
    reordered = ["|".join(reversed(each.split("|"))) for each in (HEAD, line())]
    (job,) = jobs(tmp_path / "a.txt", reordered[1], head=reordered[0]).values()
    assert (job.gpus, job.duration_s, job.user) == (8, 3600, "ann")
    (job,) = jobs(tmp_path / "b.txt", f"{line()}|main|", head=f"{HEAD}|Partition|").values()
    assert job.queue == "main"


@pytest.mark.parametrize(
    ("tres", "gpus", "model"),
    [
        ("billing=4,cpu=4,gres/gpu=2,mem=64G,node=1", 2, ""),
        ("cpu=4,gres/gpu:a100=8", 8, "a100"),
        ("gres/gpu=3,gres/gpu:a100=2,gres/gpu:v100=1", 3, ""),
        ("cpu=4,gres/gpu=1,gres/gpumem=40G,gres/gpuutil=7", 1, ""),
    ],
)
def test_units_of_gpus(tres: str, gpus: int, model: str, tmp_path: Path) -> None:
    (job,) = jobs(tmp_path / "a.txt", line(tres=tres)).values()
    assert (job.gpus, job.gpu_model) == (gpus, model)


def test_an_old_number_that_comes_again_is_another_job(tmp_path: Path) -> None:
    found = jobs(
        tmp_path / "a.txt",
        line("7", "10:00:00", "10:05:00"),
        line("7", "15:00:00", "15:01:00", submit="14:00:00"),
    )
    assert {name: job.duration_s for name, job in found.items()} == {"7": 300, "7#2": 60}


def test_a_job_that_waits_again_still_goes_on(tmp_path: Path) -> None:
    found = jobs(
        tmp_path / "a.txt",
        line("7", end="10:05:00", state="REQUEUED"),
        line("7", "Unknown", "Unknown", submit="10:05:00", state="PENDING", tres=""),
        line("8", end="10:05:00", state="PREEMPTED"),
        line("8", "None", "10:09:00", submit="10:05:00", state="CANCELLED by 7", tres=""),
    )
    assert found.keys() == {"8"}
    assert (found["8"].duration_s, found["8"].state) == (300, "CANCELLED")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([HEAD.replace("Submit|", ""), "1|x"], "line 1: no column Submit"),
        ([HEAD, line(), "2|x|y"], "line 3: 3 cells under 9 columns"),
        ([HEAD, line("a7")], "line 2: JobID: 'a7' is no number of a job"),
        ([HEAD, line(end="noon")], "line 2: End: 'noon' is no date"),
        ([HEAD, line(end="2026-13-40T10:00:00")], "line 2: End: '2026-13-40T10:00:00' is no date"),
        ([HEAD, line("1.batch")], "no job ran on GPUs and ended (left out steps of jobs: 1)"),
        ([], "line 1: no column JobID"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(lines: list[str], says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=re.escape(says)) as error:
        read_history("sacct", [path])
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
