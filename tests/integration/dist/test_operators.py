"""Rank 0 of a job with DDP records the operators of one step: those of a single process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.model.manifest import OPERATORS_NAME
from ddlprof.store import load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job

pytestmark = [pytest.mark.dist, pytest.mark.slow]
BATCH = 4


def test_they_are_those_of_one_rank(job: Job, tmp_path: Path) -> None:
    job(tmp_path, 2, [*DDLPROF, str(HERE / "operators.py")])
    (run,) = (tmp_path / "ddlprof-runs").iterdir()
    assert [path.name for path in run.rglob("operators*")] == [OPERATORS_NAME]
    step = load_run(run).step
    assert step is not None
    assert (step.batch, step.optimizer, step.unseen) == (BATCH, "adamw", ())
    products = {each.shape: each.count for each in step.operators if each.name == "addmm"}
    assert products == {(1, BATCH, 32, 16): 1, (1, BATCH, 4, 32): 1}
    elements = 16 * 32 + 32 + 32 * 4 + 4
    assert [each.shape for each in step.operators if each.phase == "optimizer"] == [(elements, 4)]
    assert step.memory is not None
    assert step.memory.parameter_bytes == step.memory.trained_bytes == 4 * elements
    assert step.memory.input_bytes == 4 * BATCH * 16
