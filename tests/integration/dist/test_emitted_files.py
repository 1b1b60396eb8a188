"""The file that `recommend --emit torchrun` writes starts the training on each machine, and the run is one run."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.emit import torchrun
from ddlprof.emit.start import PORT
from ddlprof.store import load_run
from scripts.lab.emitted_files import TWO
from tests.integration.dist.conftest import HERE
from tests.integration.dist.starting import RANKS, STEPS
from tests.integration.processes import PATIENCE_S, Processes, free_port

pytestmark = pytest.mark.dist


@pytest.mark.slow
def test_two_machines_train_one_job(processes: Processes, tmp_path: Path) -> None:
    """Each names a run directory by its own clock; there is one in the end, and it has all ranks and the arguments."""
    words = (str(HERE / "starting.py"), "mesh")
    start = replace(TWO, job="job", words=words, nodes=RANKS, gpus_per_node=1)
    script = tmp_path / "job.torchrun.sh"
    script.write_text(torchrun.render(start).replace(f"-port {PORT}", f"-port {free_port()}"), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    place = {"MASTER_ADDR": "127.0.0.1", "PATH": path, "OMP_NUM_THREADS": "1"}
    machines = []
    for number in range(RANKS):
        machines.append(processes.start("bash", str(script), cwd=tmp_path, env={**place, "NODE_RANK": str(number)}))
        time.sleep(1.1)  # the next one has another second in its directory's name
    for each in machines:
        assert each.wait(PATIENCE_S) == 0
    (directory,) = (tmp_path / "ddlprof-runs").iterdir()
    run = load_run(directory)
    assert [(rank.rank, len(rank.steps)) for rank in run.ranks] == [(0, STEPS), (1, STEPS)]
    assert run.manifest is not None
    assert run.manifest.argv == list(words)
