"""Exposed communication of ranks that wait for each other by a known time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlprof.store.tables import RankData
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.waiting import SLEEP_S, STEPS

pytestmark = pytest.mark.dist


def measure(job: Job, directory: Path, variant: str) -> list[RankData]:
    job(directory, 2, [*DDLPROF, "--out", "run", str(HERE / "waiting.py"), variant])
    ranks = ranks_of(directory / "run", 2)
    assert [len(rank.steps) for rank in ranks] == [STEPS, STEPS]
    return ranks


def share_of_sleep(rank: RankData, name: str) -> float:
    """The class in terms of the injected sleep: the median of the steps, so that a busy machine matters less."""
    values = sorted(rank.steps[f"{name}_ns"].tolist()[2:])
    return float(values[len(values) // 2]) / (SLEEP_S * 1e9)


@pytest.mark.parametrize("variant", ["slow_rank", "by_hand"])
def test_the_fast_rank_waits_for_the_slow_one(variant: str, job: Job, tmp_path: Path) -> None:
    fast, slow = measure(job, tmp_path, variant)
    assert 0.8 < share_of_sleep(fast, "comm") < 1.3
    assert share_of_sleep(slow, "comm") < 0.3
    assert share_of_sleep(slow, "compute") > 0.95
    assert share_of_sleep(fast, "compute") < 0.4


def test_computation_after_a_checkpoint_inside_backward_is_no_communication(job: Job, tmp_path: Path) -> None:
    """Reentrant checkpointing runs a backward inside the backward, whose end is not the end of computation."""
    for rank in measure(job, tmp_path, "slow_backward"):
        assert share_of_sleep(rank, "comm") < 0.4
        assert share_of_sleep(rank, "compute") > 0.95


def test_waits_are_accounted_for_by_collectives(job: Job, tmp_path: Path) -> None:
    for rank in measure(job, tmp_path, "slow_rank"):
        table, comm_us = rank.collectives, rank.steps["comm_ns"] // 1000
        for step in range(2, STEPS):
            exposed = table.exposed_us[table.row == step]
            assert exposed.min() >= 0
            assert comm_us[step] * 0.9 - 100 <= exposed.sum() <= comm_us[step]
        assert (table.ready_us <= table.end_us).all()


def test_the_end_of_a_last_collective_that_backward_does_not_wait_for(job: Job, tmp_path: Path) -> None:
    """It is over half a sleep after its issue, and waited for another half later, which exposes nothing of it."""
    table = measure(job, tmp_path, "after_backward")[1].collectives
    last = np.flatnonzero(np.diff(table.row, append=STEPS) > 0)[2:]
    duration_s = (table.end_us - table.ready_us)[last] / 1e6
    assert 0.3 * SLEEP_S < np.median(duration_s) < 0.85 * SLEEP_S
    assert np.median(table.exposed_us[last]) < 0.05e6 * SLEEP_S


def test_a_wait_for_what_is_over_is_not_for_what_is_under_way(job: Job, tmp_path: Path) -> None:
    table = measure(job, tmp_path, "over")[0].collectives
    under_way = table.exposed_us[1::2][2:] / 1e6 / SLEEP_S
    assert np.min(under_way) < 1.2, "waits last longer only where the machine is busy"
    assert np.median(under_way) > 0.8


def test_without_a_process_group_other_ranks_say_that_they_are_not_recorded(job: Job, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "import torch\nnet = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    net(torch.ones(2, 2)).sum().backward()\n    optimizer.step()\n"
    )
    loud = [word for word in DDLPROF if word != "--quiet"]
    first, second = job(tmp_path, 2, [*loud, "--out", "run", "alone.py"])
    assert "Traceback" not in first + second
    assert sum(line.startswith("ddlprof:") for line in second.splitlines()) <= 1
