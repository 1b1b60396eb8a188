"""Stages applied on real ranks: what they train together is what one process trains with the whole model and batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.extensions.hetero.integration import staged
from tests.integration.dist.conftest import Job

SCRIPT = Path(__file__).with_name("staged.py")
pytestmark = [pytest.mark.dist, pytest.mark.slow]


def write_plan(path: Path, begins: Sequence[str], shares: Sequence[Sequence[int]], micro_batches: int) -> int:
    """A plan with these samples for the ranks of each stage; returns the number of ranks."""
    ranks: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    for begin, samples in zip(begins, shares, strict=True):
        stages.append({"begins": begin, "ranks": [len(ranks) + n for n in range(len(samples))]})
        ranks += [{"device": f"gpu{len(ranks)}", "machine": "m", "samples": each} for each in samples]
    path.write_text(json.dumps({"schema": 2, "ranks": ranks, "stages": stages, "micro_batches": micro_batches}))
    return len(ranks)


def alone() -> tuple[list[float], dict[str, Any]]:
    model = staged.net()
    optimizer, losses = staged.optimizer_of(model.parameters()), []
    for tokens, targets in staged.batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, {name: p.flatten() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("begins", "shares", "micro_batches"),
    [
        (["", "blocks.1"], [[3], [3]], 4),
        (["", "blocks.0.wide", "blocks.2"], [[2, 2], [3, 1], [4]], 3),  # two tensors cross where a block is divided
        (["", "head"], [[6], [4, 2]], 2),
        ([""], [[3, 1]], 3),
    ],
    ids=["stages", "replicas", "replicas-of-the-last", "one-stage"],
)
def test_stages_train_what_one_process_trains(
    begins: list[str], shares: list[list[int]], micro_batches: int, tmp_path: Path, job: Job
) -> None:
    world = write_plan(tmp_path / "plan.json", begins, shares, micro_batches)
    job(tmp_path, world, [str(SCRIPT), "plan.json", "."])
    losses, expected = alone()
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world)]
    told = [each["losses"] for each in found if each["losses"][0] is not None]
    assert told == [pytest.approx(losses, rel=1e-9)]
    held = [name for each in found for name in each["parameters"]]
    assert set(held) == set(expected)
    for each in found:
        for name, values in each["parameters"].items():
            one, other = torch.tensor(values, dtype=torch.float64), expected[name]
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
