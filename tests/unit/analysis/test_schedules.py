"""Replays of pipelines' schedules, against the formulas of the literature."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.schedules import Orders, equal_waits, one_forward_one_backward
from ddlprof.model.pipeline import BACKWARD, FORWARD, OF_INPUT, OF_WEIGHT, Action, read_order, written


def gpipe(stages: int, micro_batches: int) -> Orders:
    return tuple(
        tuple(Action(stage, kind, batch) for kind in (FORWARD, BACKWARD) for batch in range(micro_batches))
        for stage in range(stages)
    )


COUNTS = st.tuples(st.integers(2, 6), st.integers(1, 12))


@given(COUNTS, st.floats(0.1, 0.9))
def test_a_pipeline_of_equal_stages_waits_for_one_less_than_its_stages(counts: tuple[int, int], share: float) -> None:
    stages, micro_batches = counts
    for orders in (gpipe(stages, micro_batches), one_forward_one_backward(stages, micro_batches)):
        assert equal_waits(orders, share) == pytest.approx([stages - 1] * stages)


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
