"""`ddlprof cluster import sacct` of what a real Slurm remembers of jobs that it has just run.

Slurm is not installed for this: the variable names a folder in which scripts/lab/slurm_history.sh has unpacked it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.extensions.cluster.trace import read_trace

ROOT = Path(__file__).parents[4]
FOLDER = os.environ.get("DDLPROF_SLURM", "")
PATIENCE_S = 600


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="DDLPROF_SLURM names no folder of scripts/lab/slurm_history.sh")
def test_the_history_of_a_real_slurm(tmp_path: Path) -> None:
    recipe = ["bash", str(ROOT / "scripts/lab/slurm_history.sh"), FOLDER]
    printed = subprocess.run(recipe, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    command = [sys.executable, "-m", "ddlprof", "cluster", "import", "sacct", "-", "-o", "jobs.csv"]
    done = subprocess.run(command, input=printed, capture_output=True, text=True, cwd=tmp_path, check=True)
    jobs = {job.job_id: job for job in read_trace(tmp_path / "jobs.csv")}
    names = {line.split("|")[0]: line.split("|")[1] for line in printed.splitlines()}
    gpus = sorted((names.get(number, "mixed"), job.gpus) for number, job in jobs.items())
    assert gpus == [
        ("again", 4), ("bert", 16), ("ended", 8), ("evaluate", 1), ("mixed", 6), ("resnet", 8), ("resnet", 8),
        ("slow", 2), *[("sweep", 2)] * 4,
    ]  # fmt: skip
    assert "left out jobs that still run: their length is not known: 1" in done.stderr
    assert "started more than once, their times added: 1 job" in done.stderr
