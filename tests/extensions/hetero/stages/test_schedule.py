"""Stages on the clock, by hand and against the orders that torch itself prints."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from ddlprof.extensions.hetero.stages.problem import Stage, StagedStrategy
from ddlprof.extensions.hetero.stages.schedule import Compute, one_forward_one_backward, simulate_stages
from tests.extensions.hetero.problems import apart
from tests.extensions.hetero.stages.problems import MB, layered, one_each

NONE = apart(2, gb_s=1e9)


def test_equal_stages_take_the_micro_batches_and_the_filling() -> None:
    """(M + S - 1) passes forward and backward of one stage (Narayanan et al., 2021)."""
    job = layered((0.1, 0.1, 0.1), 3, 8, devices=apart(3, gb_s=1e9), update_s=0.6)
    step = simulate_stages(job, one_each(job, (1, 2, 3), (0, 1, 2), 8))
    of_stage_s = 0.3 / 3
    assert step.step_s == pytest.approx((8 + 3 - 1) * of_stage_s + 0.6 / 3)
    assert step.bubble == pytest.approx(1 - (8 * of_stage_s + 0.2) / step.step_s)


def test_a_slow_first_stage_waits_for_nobody() -> None:
    job = layered((0.3, 0.1), 2, 4, devices=NONE)
    step = simulate_stages(job, one_each(job, (1, 2), (0, 1), 4))
    assert step.step_s == pytest.approx(4 * 0.45)
    assert step.busy_s == pytest.approx((4 * 0.45, 4 * 0.15))


def test_in_turn_each_micro_batch_waits_for_its_transfers() -> None:
    """Two equal stages: the first passes, then M - 1 exchanges and passes of both, then the last way back."""
    job = layered((0.2, 0.2), 2, 4, devices=apart(2, gb_s=1.0), passed=10 * MB)
    moved_s, forward_s, backward_s = 0.01, 0.1, 0.2
    step = simulate_stages(job, one_each(job, (1, 2), (0, 1), 4))
    both_s = forward_s + backward_s + moved_s
    assert step.step_s == pytest.approx(forward_s + moved_s + 4 * both_s + backward_s)
    (link,) = step.links
    assert [link.bytes, link.seconds] == pytest.approx([8 * 10 * MB, 8 * moved_s])


def test_replicas_share_a_micro_batch_and_sum_their_gradients() -> None:
    job = layered((0.1, 0.1, 0.1), 2, 8, devices=apart(3, gb_s=1.0), passed=10 * MB)
    strategy = StagedStrategy((Stage(0, 1, (0,), (4,)), Stage(1, 2, (1, 2), (2, 2))), 2)
    step = simulate_stages(job, strategy)
    kinds = {link.name: link for link in step.links}
    assert kinds["activations and gradients"].bytes == pytest.approx(2 * 2 * 4 * 10 * MB)
    assert kinds["micro-batches"].bytes == pytest.approx(2 * 2 * 2 * 10 * MB)  # inputs and their gradients, no results
    assert kinds["all-reduce"].bytes == pytest.approx(2 * MB)
    assert step.busy_s[1] == pytest.approx(step.busy_s[2]) == pytest.approx(step.busy_s[0] / 2)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 2), (2, 2), (3, 8), (4, 5)])
def test_the_order_is_that_of_torch(stages: int, micro_batches: int) -> None:
    """The passes of each stage, and of what crosses a boundary everything is sent and received once."""
    moved: dict[tuple[str, int, int], int] = defaultdict(int)
    for stage in range(stages):
        actions = list(one_forward_one_backward(stage, stages, micro_batches))
        passes = [each for each in actions if isinstance(each, Compute)]
        ahead = min(micro_batches, stages - stage)
        expected = ["forward"] * ahead
        for number in range(micro_batches):
            expected += ["backward"] + ["forward"] * (ahead + number < micro_batches)
        assert [each.name for each in passes] == expected
        for name in ("forward", "backward"):
            assert [each.micro_batch for each in passes if each.name == name] == list(range(micro_batches))
        for each in actions:
            if type(each).__name__ == "Post":
                for move in each.moves:  # type: ignore[union-attr]
                    moved[move] += 1
    assert len(moved) == 2 * (stages - 1) * micro_batches
    assert set(moved.values()) <= {2}


def test_nothing_overlaps_on_a_device() -> None:
    job = layered((0.1, 0.3, 0.2), 6, 12, devices=apart(3, gb_s=1.0), passed=MB, update_s=0.1)
    step = simulate_stages(job, one_each(job, (2, 3, 6), (2, 0, 1), 6), traced=True)
    lanes = defaultdict(list)
    for each in step.slices:
        lanes[each.lane].append(each)
    for lane, slices in lanes.items():
        if lane[0] == "device":
            slices.sort(key=lambda each: each.begin_s)
            assert all(one.end_s <= following.begin_s + 1e-9 for one, following in pairwise(slices))
    assert max(each.end_s for each in step.slices) == pytest.approx(step.step_s)
