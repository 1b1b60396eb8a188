"""Stalls as differences of mean steps, beside the direct figures, from made-up experiments."""

from __future__ import annotations

import pytest

from ddlprof.analysis.summary import Spread, Summary
from ddlprof.extensions.characterize.differential import ExperimentTimes, Stall, measure, reference_step_s, stalls
from ddlprof.extensions.characterize.experiment import ALL_REPLAYED, COLD, NETWORK, ONE_REPLAYED, WARM
from ddlprof.model.classes import TIMES


def measured(*steps_s: float, **times_s: float | None) -> ExperimentTimes:
    return ExperimentTimes(list(steps_s), {**dict.fromkeys(TIMES), **times_s})


def by_name(**experiments: ExperimentTimes) -> dict[str, Stall]:
    return {stall.name: stall for stall in stalls({n.replace("_", "-"): m for n, m in experiments.items()})}


def test_a_negative_difference_is_shown_as_it_is() -> None:
    found = by_name(all_replayed=measured(0.2, comm=0.0), warm=measured(0.19, data=0.001))
    assert found["prep"].stall_s == pytest.approx(-0.01)
    assert found["prep"].disagreement_s == pytest.approx(-0.011)


def test_repeats_give_medians_and_a_spread() -> None:
    prep = by_name(all_replayed=measured(0.1, 0.5, 0.2), warm=measured(0.4, 0.3, 0.9))["prep"]
    assert (prep.stall_s, prep.stall_low_s, prep.stall_high_s) == pytest.approx((0.2, -0.2, 0.8))
    once = by_name(all_replayed=measured(0.1, 0.2), warm=measured(0.4))["prep"]
    assert once.stall_low_s is once.stall_high_s is None


def test_measure_takes_medians_of_the_repeats() -> None:
    def summary(**means_ns: float | None) -> Summary:
        return Summary({name: Spread(means_ns.get(name)) for name in TIMES}, 10, 0)

    found = measure([summary(step=3e9, data=1e9), summary(step=1e9), summary(step=2e9, data=2e9)])
    assert found.steps_s == [3.0, 1.0, 2.0]
    assert found.step_s == found.times_s["step"] == 2.0
    assert found.times_s["data"] == 1.5
    assert found.times_s["comm"] is None


@pytest.mark.parametrize(
    ("names", "reference"),
    [
        ((ONE_REPLAYED, ALL_REPLAYED, WARM, COLD, NETWORK), COLD),
        ((ALL_REPLAYED, WARM), WARM),
        ((ONE_REPLAYED,), ONE_REPLAYED),
    ],
)
def test_shares_are_of_the_run_nearest_to_the_training(names: tuple[str, ...], reference: str) -> None:
    experiments = {name: measured(float(number)) for number, name in enumerate(names)}
    assert reference_step_s(experiments) == experiments[reference].step_s
