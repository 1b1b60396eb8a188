"""`ddlprof plan --check` on its two real processes, with short steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ddlprof.base.cores import available_cores
from ddlprof.extensions.hetero.check.run import BY_SPEED, EVEN, PLAN, TOLERANCE, CheckedSplit, compared, measured
from tests.extensions.hetero.problems import problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.skipif((available_cores() or 1) < 2, reason="needs a core for each process"),
]
ROUNDS = 5


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measured(problem((0.1, 0.3), (4e6, 1e6, 2e6), 64), rounds=ROUNDS, busy_s=0.02)


def splits(found: dict[str, Any]) -> dict[str, CheckedSplit]:
    return {each.name: each for each in compared(found).splits}


def test_each_split_is_trained_on_both_processes(found: dict[str, Any]) -> None:
    done = splits(found)
    assert list(done) == [EVEN, BY_SPEED, PLAN]
    assert all(sum(each.strategy.samples) == 64 and min(each.strategy.samples) > 0 for each in done.values())
    assert done[EVEN].strategy.samples == (32, 32)
    assert all(len(steps) == ROUNDS for steps in found["steps_s"].values())
    assert compared(found).processor_share > 0
    assert all(each.ratio > 0 for each in done.values())


def test_a_prediction_that_is_wrong_is_seen(found: dict[str, Any]) -> None:
    """As if both computed ten times as long, then as if the link were a thousand times slower."""
    slow = copy.deepcopy(found)
    for speeds in slow["speeds"]:
        for phase in ("forward_s", "backward_s"):
            speeds[phase] = [[10 * each for each in process] for process in speeds[phase]]
    for name, honest in splits(found).items():
        assert splits(slow)[name].ratio > 2 * honest.ratio
    far = copy.deepcopy(found)
    for speeds in far["speeds"]:
        speeds["reduced_s"] = [1000 * each for each in speeds["reduced_s"]]
    assert compared(far).worst > TOLERANCE
    assert not compared(far).holds
