"""What a check predicts from what was measured; the processes themselves are in `tests/integration/dist`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.extensions.hetero.check.run import BY_SPEED, EVEN, MeasuredSpeeds, Model, compared, problem
from ddlprof.extensions.hetero.problem import SplitStrategy, Taken
from ddlprof.extensions.hetero.simulation import simulate

SPEEDS = MeasuredSpeeds(
    samples=(8, 16, 48), forward_s=((0.01, 0.02, 0.04), (0.02, 0.05, 0.08)), backward_s=((0.02,) * 3, (0.04,) * 3),
    update_s=(0.0, 0.0), reduced_bytes=(1000, 2000), reduced_s=(0.0010, 0.0011),
    taken_s=(Taken(0.001, 0.002), Taken(0.003, 0.006)), processor_share=1.0,
)  # fmt: skip
MODEL = Model(gradient_bytes=(1000, 1500), repeats=(1, 3), slow=3, batch=64)


FOUND: dict[str, Any] = {
    "model": {"gradient_bytes": [1_000_000], "repeats": [1], "slow": 3, "batch": 64},
    "strategies": {
        EVEN: {"samples": [32, 32], "servers": [None], "by_rank": False},
        BY_SPEED: {"samples": [48, 16], "servers": [None], "by_rank": False},
    },
    "speeds": [
        {
            "samples": [8, 48], "forward_s": [[0.008 * slowed, 0.048 * slowed], [0.024 * slowed, 0.144 * slowed]],
            "backward_s": [[0.008 * slowed, 0.048 * slowed], [0.024 * slowed, 0.144 * slowed]], "update_s": [0.0, 0.0],
            "reduced_bytes": [1000, 1_000_000], "reduced_s": [0.001, 0.002], "taken_s": [[0.0, 0.0], [0.0, 0.0]],
            "processor_share": 1.0,
        }
        for slowed in (1, 2, 1)
    ],
    "steps_s": {EVEN: [0.2, 0.4, 0.2], BY_SPEED: [0.1, 0.2, 0.1]},
}  # fmt: skip
"""96 ms of forward and as much of backward for the slow process in the even split, half of it by speed; the machine is
half as fast in the second of three rounds."""


def test_a_check_holds_where_the_steps_are_those_that_were_predicted() -> None:
    found = compared(FOUND)
    assert [each.predicted_s for each in found.splits] == pytest.approx([0.194, 0.098])
    assert found.holds
    assert found.gain == pytest.approx(2)


def test_a_round_is_predicted_by_what_was_measured_around_it() -> None:
    """Steps that are slow while the machine is not are off."""
    found = compared({**FOUND, "steps_s": {EVEN: [0.4, 0.2, 0.4], BY_SPEED: [0.2, 0.1, 0.2]}})
    assert [each.ratio for each in found.splits] == pytest.approx([0.194 / 0.4, 0.098 / 0.2])


@pytest.mark.parametrize(
    ("samples", "forward_s"), [(8, 0.01), (12, 0.015), (16, 0.02), (32, 0.03), (4, 0.005), (64, 0.05)]
)
def test_times_lie_on_the_lines_between_what_was_measured(samples: int, forward_s: float) -> None:
    assert SPEEDS.work(0, samples).forward_s == pytest.approx(forward_s)


def test_a_link_is_the_line_through_two_sizes() -> None:
    gb_s, latency_s = SPEEDS.link
    assert gb_s == pytest.approx(1e3 / 0.0001 / 1e9)
    assert 2 * (500 / 1e9 / gb_s + latency_s) == pytest.approx(0.0010)


def test_what_exchanges_take_is_in_the_step_of_both_and_in_none_where_there_are_cores_for_them() -> None:
    both = SplitStrategy((32, 32), (None, None))
    here = problem(MODEL, SPEEDS)
    assert [*here.taken_s[0], *here.taken_s[1]] == pytest.approx([0.001, 0.002, 0.002, 0.004])
    free = problem(MODEL, replace(SPEEDS, taken_s=(Taken(0.0, 0.0), Taken(0.0, 0.0))))
    later_s = simulate(here, both).step_s - simulate(free, both).step_s
    assert later_s == pytest.approx(0.002)  # that of the group of which backward goes on beside the exchange
    served = SplitStrategy((32, 32), (None, 0))
    assert simulate(here, served).step_s - simulate(free, served).step_s == pytest.approx(0.004)
    alone = SplitStrategy((64, 0), (None, None))
    assert simulate(here, alone).step_s == pytest.approx(simulate(free, alone).step_s)
