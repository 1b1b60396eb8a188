"""Replays of pipelines' schedules, against the formulas of the literature."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.schedules import Orders, equal_waits, one_forward_one_backward, waits
from ddlprof.model.pipeline import BACKWARD, FORWARD, OF_INPUT, OF_WEIGHT, Action, read_order, written


def gpipe(stages: int, micro_batches: int) -> Orders:
    return tuple(
        tuple(Action(stage, kind, batch) for kind in (FORWARD, BACKWARD) for batch in range(micro_batches))
        for stage in range(stages)
    )


def interleaved(ranks: int, virtual: int, micro_batches: int) -> Orders:
    """Megatron's schedule: forwards of p micro-batches through each of a rank's stages in turn, then 1F1B."""

    def forward(rank: int, step: int) -> Action:
        turn, batch = step // ranks % virtual, step // (ranks * virtual) * ranks + step % ranks
        return Action(turn * ranks + rank, FORWARD, batch)

    def backward(rank: int, step: int) -> Action:
        turn, batch = virtual - 1 - step // ranks % virtual, step // (ranks * virtual) * ranks + step % ranks
        return Action(turn * ranks + rank, BACKWARD, batch)

    orders = []
    for rank in range(ranks):
        total = virtual * micro_batches
        ahead = min(total, (virtual - 1) * ranks + 2 * (ranks - 1 - rank))
        actions = [forward(rank, step) for step in range(ahead)]
        for step in range(total - ahead):
            actions += [forward(rank, ahead + step), backward(rank, step)]
        actions += [backward(rank, step) for step in range(total - ahead, total)]
        orders.append(tuple(actions))
    return tuple(orders)


COUNTS = st.tuples(st.integers(2, 6), st.integers(1, 12))


@given(COUNTS, st.floats(0.1, 0.9))
def test_a_pipeline_of_equal_stages_waits_for_one_less_than_its_stages(counts: tuple[int, int], share: float) -> None:
    stages, micro_batches = counts
    for orders in (gpipe(stages, micro_batches), one_forward_one_backward(stages, micro_batches)):
        assert equal_waits(orders, share) == pytest.approx([stages - 1] * stages)


@pytest.mark.parametrize(("ranks", "virtual", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 4, 8), (2, 3, 6)])
def test_several_stages_on_a_rank_divide_the_bubble(ranks: int, virtual: int, micro_batches: int) -> None:
    found = equal_waits(interleaved(ranks, virtual, micro_batches), 1 / 3)
    # A forward and a backward of a stage take 1, so those of a rank take `virtual`.
    assert found == pytest.approx([ranks - 1] * ranks)


def test_a_slow_stage_waits_for_less_and_the_others_for_more() -> None:
    orders, forward = one_forward_one_backward(4, 8), [1.0, 1.0, 1.5, 1.0]
    found = waits(orders, forward, [2 * f for f in forward])
    assert found is not None
    period = found[2] + 8 * 4.5
    # The slowest stage sets the pace. It waits for the two stages before it, forward and backward, and for the one
    # behind it, but for the forward that it does meanwhile.
    assert found[2] == pytest.approx(2 * 1 + 2 * 2 + (1 + 2) - 1.5)
    assert [found[0], found[1], found[3]] == pytest.approx([period - 8 * 3] * 3)


def test_a_backward_in_halves_lets_the_stage_before_begin_sooner() -> None:
    """Two stages and two micro-batches; the gradients of weights fill the waits, as in zero-bubble schedules."""

    def halves(stage: int, batch: int) -> list[Action]:
        return [Action(stage, OF_INPUT, batch), Action(stage, OF_WEIGHT, batch)]

    first = [Action(0, FORWARD, 0), Action(0, FORWARD, 1), *halves(0, 0), *halves(0, 1)]
    last = [Action(1, FORWARD, 0), Action(1, OF_INPUT, 0), Action(1, FORWARD, 1), Action(1, OF_INPUT, 1)]
    last += [Action(1, OF_WEIGHT, 0), Action(1, OF_WEIGHT, 1)]
    found = equal_waits((tuple(first), tuple(last)), 1 / 3)
    assert found is not None
    assert max(found) < 1


@pytest.mark.parametrize(
    "orders",
    [
        ((Action(0, FORWARD, 0), Action(0, BACKWARD, 0)), (Action(1, FORWARD, 1), Action(1, BACKWARD, 1))),
        ((Action(0, BACKWARD, 0), Action(0, FORWARD, 0)), (Action(1, FORWARD, 0), Action(1, BACKWARD, 0))),
    ],
)
def test_orders_that_cannot_be_carried_out_tell_nothing(orders: Orders) -> None:
    assert equal_waits(orders, 1 / 3) is None


def test_an_order_is_read_as_it_was_written() -> None:
    actions = [Action(12, FORWARD, 3), Action(0, BACKWARD, 11), Action(4, OF_INPUT, 0), Action(4, OF_WEIGHT, 0)]
    assert written(actions) == "12F3,0B11,4I0,4W0"
    assert list(read_order(written(actions))) == actions
    assert written([Action(0, FORWARD, number) for number in range(100_000)]) == ""
    with pytest.raises(ValueError, match="not an action"):
        read_order("0X1")
