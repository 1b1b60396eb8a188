"""Layers that are split over the ranks train as without ddlprof, and their operations are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.tensor_parallel import STEPS, VARIANTS

pytestmark = [pytest.mark.dist, pytest.mark.slow]

TOKENS, BLOCKS = 8, 2


def test_dtensors_with_accumulating_gradients(job: Job, tmp_path: Path) -> None:
    script = str(HERE / "tensor_parallel.py")
    job(tmp_path, 2, [script, "plain"])
    job(tmp_path, 2, [*DDLPROF, script, "profiled"])
    for rank in range(2):
        plain, profiled = (torch.load(tmp_path / f"{name}-{rank}.pt") for name in ("plain", "profiled"))
        assert list(profiled) == list(VARIANTS)
        for variant in VARIANTS:
            for before, after in zip(plain[variant], profiled[variant], strict=True):
                assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    (run,) = (tmp_path / "ddlprof-runs").iterdir()
    for recorded in ranks_of(run, 2):
        assert len(recorded.steps) == STEPS * len(VARIANTS)
        assert recorded.notes == []
    model = json.loads((run / "manifest.json").read_text())["model"]
    forward = TOKENS * BLOCKS * 2 * 2 * 16 * 32  # of the whole layers
    assert (model["forward_flops_per_sample"], model["backward_flops_per_sample"]) == (forward, 2 * forward)
