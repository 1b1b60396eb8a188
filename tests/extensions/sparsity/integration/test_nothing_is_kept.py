"""Counting keeps nothing of the script's, as `tests/integration/hooks/test_nothing_is_kept.py` asks of hooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ddlprof.extensions.sparsity.collect.watch import SparsityWatch
from ddlprof.extensions.sparsity.model import SparsityRequest
from tests.integration.hooks.test_nothing_is_kept import STEPS, WIDTH, Locals, kept_output, uncollected

__all__ = ["uncollected"]


def test_nothing_of_a_counted_step_is_alive_after_it(
    tmp_path: Path, uncollected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ddlprof.extensions.sparsity.collect.counting.used_dynamo", lambda: False
    )  # tests before may have
    seen, model = Locals("cpu", tmp_path), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    outputs = [kept_output(seen, model, optimizer)]
    assert seen.alive() == []
    watch = SparsityWatch(SparsityRequest(str(tmp_path / "counts.json"), every=2))
    watch.begin()
    found = []
    for _ in range(STEPS):
        outputs.append(kept_output(seen, model, optimizer))
        found += seen.alive()
    watch.finish()
    assert watch.counts.steps
    assert found == []
