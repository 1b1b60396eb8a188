"""A plan applied on real ranks: what they train is what one process trains with the whole batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.extensions.hetero.integration import uneven
from tests.integration.dist.conftest import Job

SCRIPT = Path(__file__).with_name("uneven.py")
SIZES = [(6 * 16 + 16) * 8, (16 * 16 + 16) * 8, (16 * 3 + 3) * 8]


def write_plan(path: Path, samples: list[int], servers: list[int | None]) -> None:
    ranks = [{"device": f"gpu{number}", "machine": "m", "samples": each} for number, each in enumerate(samples)]
    groups = [
        {"layers": "l", "gradient_bytes": size, "server_rank": server}
        for size, server in zip(SIZES, servers, strict=True)
    ]
    path.write_text(json.dumps({"schema": 1, "ranks": ranks, "groups": groups}))


def alone(batch: int, accumulated: int) -> list[list[float]]:
    """One process, in the order of a DistributedSampler of one rank."""
    sampler: DistributedSampler[int] = DistributedSampler(uneven.data(), 1, 0, shuffle=True, seed=5)
    model = uneven.net()
    uneven.train(model, DataLoader(uneven.data(), batch_size=batch, sampler=sampler), sampler, accumulated)
    return [p.flatten().tolist() for p in model.parameters()]


@pytest.mark.dist
@pytest.mark.slow
def test_uneven_ranks_train_what_one_process_trains(tmp_path: Path, job: Job) -> None:
    """37 samples, so that the last batch of an epoch has two, and the second rank nothing of it; two micro-batches an
    update; a parameter server on each rank, and an all-reduce."""
    samples, accumulated = [6, 1], 2
    write_plan(tmp_path / "plan.json", samples, [None, 1, 0])
    job(tmp_path, len(samples), [str(SCRIPT), "plan.json", ".", str(accumulated)])
    expected = alone(sum(samples), accumulated)
    for rank in range(len(samples)):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-9, atol=1e-12)
