"""How choices are judged, on a case whose answer is plain."""

from __future__ import annotations

import pytest

from ddlprof.recommender import Estimate, Measurement, StepTimes, Target, Workload
from scripts.fit.regret import Case, Choice, Outcome, budgets_s, judge, outcome, usd_per_hour

T4, V100 = ("g4dn.xlarge", 1), ("p3.2xlarge", 1)
CASE = Case(
    source="made up",
    model="net",
    workload=Workload("net", measurements=[Measurement("g4dn.xlarge", placement=(1,), batch_per_gpu=10, step_s=1.0)]),
    batch_per_gpu=10,
    steps_s={T4: 1.0, V100: 0.5},
    gpus={"g4dn.xlarge": 1, "p3.2xlarge": 1},
)


class Wrong:
    """Gets the V100 right and the T4 too fast by `factor`, with an interval of one per cent."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def predict(self, target: Target) -> Estimate:
        step_s = 0.5 if target.instance_type == "p3.2xlarge" else self._factor
        times = StepTimes(step_s, 0.0, 0.0, 0.0, 0.0, 0.0)
        return Estimate(step_s, 0.99 * step_s, 1.01 * step_s, times, extrapolated=False, basis=())


def test_time_and_cost_are_the_measured_ones() -> None:
    assert CASE.time_s(T4) == pytest.approx(200 * 3600)
    assert CASE.time_s(V100) == pytest.approx(100 * 3600)
    assert CASE.cost_usd(T4) == pytest.approx(200 * 0.526)
    assert usd_per_hour(("p3.2xlarge", 2)) == pytest.approx(2 * 3.06)


def test_budgets_reach_from_the_fastest_to_beyond_the_slowest() -> None:
    found = budgets_s(CASE)
    assert found[0] == pytest.approx(1.02 * CASE.time_s(V100))
    assert found[-1] == pytest.approx(2 * CASE.time_s(T4))


def test_regret_is_over_the_cheapest_in_time_and_a_late_choice_is_missed() -> None:
    regret = 100 * 3.06 / (200 * 0.526) - 1
    assert outcome(CASE, 300 * 3600, Choice(V100, True)).regret == pytest.approx(regret)
    assert outcome(CASE, 300 * 3600, Choice(T4, True)).regret == pytest.approx(0)
    assert outcome(CASE, 150 * 3600, Choice(T4, False)) == Outcome("net", None, False)


def missed(outcomes: list[Outcome]) -> int:
    return sum(found.regret is None for found in outcomes)


def test_a_right_predictor_misses_nothing_and_a_wrong_one_does() -> None:
    right = judge([CASE], lambda case: Wrong(1.0))
    assert missed(right["recommend"]) == 0
    # Budgets a hair above the T4's time are left to the V100, because of the interval; the others cost nothing.
    assert sum((found.regret or 0) > 0.01 for found in right["recommend"]) <= 1
    wrong = judge([CASE], lambda case: Wrong(0.6))
    assert missed(wrong["recommend"]) > 0
    assert missed(right["always the cheapest per hour"]) > 0
    assert missed(right["always the fastest (by the measurements)"]) == 0
