"""Exposed communication of ranks that wait for each other by a known time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlprof.model.records import NEVER
from ddlprof.store.tables import RankData
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.waiting import SLEEP_S, STEPS

pytestmark = pytest.mark.dist


def measure(job: Job, directory: Path, variant: str) -> list[RankData]:
    job(directory, 2, [*DDLPROF, "--out", "run", str(HERE / "waiting.py"), variant])
    ranks = ranks_of(directory / "run", 2)
    assert [len(rank.steps) for rank in ranks] == [STEPS, STEPS]
    return ranks


def account(directory: Path, rank: int) -> Any:
    """The script's own, without the first steps."""
    return np.array(json.loads((directory / f"{rank}.json").read_text()))[2:]


def seconds(rank: RankData, name: str) -> Any:
    """Of the class, in the same steps."""
    return np.array(rank.steps[f"{name}_ns"].tolist())[2:] / 1e9


@pytest.mark.parametrize("variant", ["slow_rank", pytest.param("by_hand", marks=pytest.mark.slow)])
def test_the_fast_rank_waits_for_the_slow_one(variant: str, job: Job, tmp_path: Path) -> None:
    """The classes add up to the step, so that what is compute is nothing else."""
    fast, slow = measure(job, tmp_path, variant)
    assert (seconds(slow, "compute") >= SLEEP_S).all()
    late = account(tmp_path, 1) - account(tmp_path, 0)
    assert np.median(seconds(fast, "comm")) > 0.5 * np.median(late)
    if variant == "slow_rank":
        assert fast.collectives.exposed_us.sum() > 0
        assert_accounted_for(fast)
        assert_accounted_for(slow)


def assert_accounted_for(rank: RankData) -> None:
    """The step's communication is that of its collectives."""
    table, comm_us = rank.collectives, rank.steps["comm_ns"] // 1000
    for step in range(2, STEPS):
        exposed = table.exposed_us[table.row == step]
        assert exposed.min() >= 0
        assert exposed.sum() <= comm_us[step]
    assert (table.ready_us <= table.end_us).all()


@pytest.mark.slow
def test_computation_after_a_checkpoint_inside_backward_is_no_communication(job: Job, tmp_path: Path) -> None:
    """Reentrant checkpointing runs a backward inside the backward, whose end is not the end of computation."""
    for rank in measure(job, tmp_path, "slow_backward"):
        assert (seconds(rank, "compute") >= SLEEP_S).all()


@pytest.mark.slow
def test_the_end_of_a_last_collective_that_backward_does_not_wait_for(job: Job, tmp_path: Path) -> None:
    """The script sees that it is over, sleeps, and then waits for it, which exposes nothing of it."""
    table = measure(job, tmp_path, "after_backward")[1].collectives
    last = np.flatnonzero(np.diff(table.row, append=STEPS) > 0)[2:]
    duration_s = (table.end_us - table.ready_us)[last] / 1e6
    assert 0 < np.min(duration_s) < SLEEP_S
    assert np.min(table.exposed_us[last]) < 0.05e6 * SLEEP_S


@pytest.mark.slow
def test_a_wait_for_what_is_over_is_not_for_what_is_under_way(job: Job, tmp_path: Path) -> None:
    table = measure(job, tmp_path, "over")[0].collectives
    over, under_way = (table.exposed_us[first::2][2:] for first in (0, 1))
    waited_us = account(tmp_path, 0) * 1e6
    assert ((over == NEVER) | (over <= waited_us[:, 0])).all()
    assert (under_way <= waited_us[:, 1]).all()
    assert np.median(under_way) > 0.5 * np.median(waited_us[:, 1])


@pytest.mark.slow
def test_without_a_process_group_other_ranks_say_that_they_are_not_recorded(job: Job, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "import torch\nnet = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    net(torch.ones(2, 2)).sum().backward()\n    optimizer.step()\n"
    )
    loud = [word for word in DDLPROF if word != "--quiet"]
    first, second = job(tmp_path, 2, [*loud, "--out", "run", "alone.py"])
    assert "Traceback" not in first + second
    assert sum(line.startswith("ddlprof:") for line in second.splitlines()) <= 1
