"""Ranks that the script, its framework or a scheduler starts: they are those of one run, and trained as without us."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.collect.job.agreement import FOLLOW_S, LEAD_S
from ddlprof.store import RankData, load_run
from tests.integration.dist.conftest import HERE, Job
from tests.integration.dist.starting import RANKS, STEPS, free_port

pytestmark = [pytest.mark.dist, pytest.mark.untimed]

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


def python(directory: Path, *words: str, **environment: str) -> Completed:
    directory.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


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


@pytest.mark.parametrize("way", ["spawn", "fork", "again"])
def test_ranks_that_the_script_starts(way: str, tmp_path: Path) -> None:
    plain = python(tmp_path / "plain", SCRIPT, way)
    done = python(tmp_path / "profiled", *PROFILED, SCRIPT, way)
    ranks = whole_run(tmp_path / "profiled", done)
    assert results(done) == results(plain) != []
    assert all((rank.steps["comm_ns"] >= 0).all() for rank in ranks)
    assert len(ranks[0].collectives) >= STEPS


def test_the_script_ends_as_it_would_where_a_rank_fails(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("form", ["around ddlprof", "under ddlprof"])
@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_ranks_of_a_scheduler(form: str, tmp_path: Path) -> None:
    directory, srun = tmp_path / "profiled", tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    script, port = [sys.executable, SCRIPT, "srun"], str(free_port())
    if form == "under ddlprof":
        done = python(directory, *PROFILED, "--", str(srun), *script, THE_PORT=port)
    else:
        command = [str(srun), sys.executable, *PROFILED, *script[1:]]
        done = python(directory, "-c", f"import os; os.execv({command[0]!r}, {command})", THE_PORT=port)
    whole_run(directory, done)
    assert {path.name for path in directory.iterdir()} == {"run"}


def test_nobody_waits_long_for_ranks_without_ddlprof(tmp_path: Path) -> None:
    def seconds(profiled: list[str]) -> float:
        """Until rank 0 has its group."""
        port, words = str(free_port()), [SCRIPT, "srun"]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "THE_PORT": port, "SLURM_PROCID": "1"}
        other = subprocess.Popen([sys.executable, *words], env=environment)
        done = python(tmp_path, *profiled, *words, THE_PORT=port, SLURM_PROCID="0")
        assert other.wait() == done.returncode == 0, done.stderr
        if profiled:
            assert f"1 of {RANKS} ranks run under ddlprof" in done.stderr
        [found] = re.findall(r"^group 0 (.*)", done.stdout, re.MULTILINE)
        return float(found)

    plain = seconds([])
    assert seconds([*PROFILED, "--no-calibrate"]) < plain + 3 * (LEAD_S + FOLLOW_S)
