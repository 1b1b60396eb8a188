"""The Pareto front and the bill."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recommender.plans.billing import cost_usd
from recommender.plans.pareto import pareto_front

points = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30)


@given(points)
def test_a_point_is_on_the_front_unless_another_beats_it(made: list[tuple[int, int]]) -> None:
    def beaten(point: tuple[int, int]) -> bool:
        return any(x <= point[0] and y <= point[1] and (x, y) != point for x, y in made)

    front = [made[index] for index in pareto_front(made)]
    assert front == sorted({point for point in made if not beaten(point)})


@pytest.mark.parametrize(
    ("time_s", "cloud", "billed_s"),
    [(3600, "aws", 3600), (90.2, "aws", 91), (5, "aws", 60), (90.2, "azure", 120), (7200, "lambda", 7200)],
)
def test_a_bill_is_rounded_up_as_the_cloud_does(time_s: float, cloud: str, billed_s: float) -> None:
    assert cost_usd(3.6, 2, time_s, cloud) == pytest.approx(2 * billed_s / 1000)
