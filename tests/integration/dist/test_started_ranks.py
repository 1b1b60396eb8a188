"""Ranks that the script, its framework or a scheduler starts: they are those of one run, and trained as without us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.store import RankData, load_run
from tests.integration.dist.conftest import HERE, Job
from tests.integration.dist.starting import RANKS, STEPS
from tests.integration.processes import PATIENCE_S, Processes, free_port

pytestmark = [pytest.mark.dist, pytest.mark.slow]

SCRIPT = str(HERE / "starting.py")
PROFILED = ["-m", "ddlprof", "run", "--out", "run"]
SRUN = """\
#!/bin/sh
# Starts its command twice, as srun does for two tasks.
for rank in 0 1; do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 "$@" &
    eval "task_$rank=$!"
done
wait $task_0 || exit 1
wait $task_1 || exit 1
"""
Completed = subprocess.CompletedProcess[str]
Python = Callable[..., Completed]


@pytest.fixture
def python(processes: Processes) -> Python:
    """Runs `python WORDS` in a directory, which is made."""

    def run(directory: Path, *words: str, **environment: str) -> Completed:
        directory.mkdir(exist_ok=True)
        command = [sys.executable, *words]
        return processes.run(*command, cwd=directory, env={"OMP_NUM_THREADS": "1", **environment}, text=True)

    return run


def results(done: Completed) -> list[str]:
    """What the ranks computed."""
    return sorted(line for line in done.stdout.splitlines() if line.startswith("trained "))


def whole_run(directory: Path, done: Completed) -> list[RankData]:
    """Both ranks of one attempt, complete, under one card."""
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Files ") == 1, done.stderr
    assert f"{RANKS} of {RANKS} ranks complete" in done.stderr
    ranks = load_run(directory / "run").ranks
    assert [(rank.attempt, rank.rank, rank.header.world_size) for rank in ranks] == [(0, 0, RANKS), (0, 1, RANKS)]
    assert [len(rank.steps) for rank in ranks] == [STEPS] * RANKS
    return ranks


@pytest.mark.parametrize("way", ["fork", "spawn", "again"])
def test_ranks_that_the_script_starts(way: str, python: Python, tmp_path: Path) -> None:
    plain = python(tmp_path / "plain", SCRIPT, way)
    done = python(tmp_path / "profiled", *PROFILED, SCRIPT, way)
    ranks = whole_run(tmp_path / "profiled", done)
    assert results(done) == results(plain) != []
    assert all((rank.steps["comm_ns"] >= 0).all() for rank in ranks)
    assert len(ranks[0].collectives) >= STEPS


def test_the_script_ends_as_it_would_where_a_rank_fails(python: Python, tmp_path: Path) -> None:
    plain = python(tmp_path / "plain", SCRIPT, "spawn", "1")
    done = python(tmp_path / "profiled", *PROFILED, SCRIPT, "spawn", "1")
    assert done.returncode == plain.returncode != 0
    assert "ValueError: diverged" in done.stderr
    assert "ddlprof/launch" not in done.stderr
    assert done.stderr.count("Files ") == 1
    _, failed = load_run(tmp_path / "profiled" / "run").ranks
    assert failed.status == "exit"
    assert len(failed.steps) == STEPS // 2 + 1


def test_a_device_mesh_makes_the_group(job: Job, tmp_path: Path) -> None:
    job(tmp_path, RANKS, [*PROFILED, "--quiet", SCRIPT, "mesh"])
    for rank in load_run(tmp_path / "run").ranks:
        assert rank.header.world_size == RANKS
        assert len(rank.collectives) >= STEPS
        assert rank.steps["comm_ns"].sum() > 0


def test_ranks_of_a_scheduler(processes: Processes, tmp_path: Path) -> None:
    """It starts `ddlprof run` for each of its tasks."""
    ranks = start_tasks(processes, [PROFILED, PROFILED])
    outputs = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    done = Completed([], max(rank.returncode for rank in ranks), *map("".join, zip(*outputs, strict=True)))
    whole_run(tmp_path, done)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_a_scheduler_under_ddlprof(python: Python, tmp_path: Path) -> None:
    directory, srun = tmp_path / "profiled", tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    script, port = [sys.executable, SCRIPT, "srun"], str(free_port())
    whole_run(directory, python(directory, *PROFILED, "--", str(srun), *script, THE_PORT=port))
    assert {path.name for path in directory.iterdir()} == {"run"}


def test_a_rank_without_ddlprof_keeps_nobody(processes: Processes, tmp_path: Path) -> None:
    measured, plain = start_tasks(processes, [[*PROFILED, "--no-calibrate"], []])
    errors = measured.communicate(timeout=PATIENCE_S)[1]
    assert plain.wait(PATIENCE_S) == measured.returncode == 0, errors
    assert f"1 of {RANKS} ranks run under ddlprof" in errors


def start_tasks(processes: Processes, profiled: list[list[str]]) -> list[subprocess.Popen[str]]:
    """As a scheduler does: each with its number and a place for all to meet."""
    port = str(free_port())
    return [
        processes.start(
            sys.executable, *words, SCRIPT, "srun", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"OMP_NUM_THREADS": "1", "THE_PORT": port, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task),
                 "SLURM_NTASKS": str(len(profiled))},
        )
        for task, words in enumerate(profiled)
    ]  # fmt: skip
