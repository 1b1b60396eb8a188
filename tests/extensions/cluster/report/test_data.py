"""Simulations side by side: means, spreads, the best, and distributions of several seeds as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.extensions.cluster.report import text as words
from ddlprof.extensions.cluster.report.data import OVERLOADED, PolicyComparison, build
from ddlprof.extensions.cluster.sweep.cases import CaseResult, SimulationCase
from tests.extensions.cluster.golden.simulations import question, result, simulated


def taking(policy: str, seed: int, mean_s: float, **figures: float | None) -> CaseResult:
    made = result(SimulationCase(policy, seed))
    return replace(made, summary=replace(made.summary, completion_mean_s=mean_s, **figures))  # type: ignore[arg-type]


def block(*results: CaseResult) -> PolicyComparison:
    return build(question(), results).blocks[0]


def test_mean_and_spread_are_those_over_the_seeds() -> None:
    found = block(taking("a", 0, 10.0), taking("a", 1, 14.0)).policies[0].figures["completion_mean_s"]
    assert found.mean == 12
    assert found.sd == pytest.approx(8**0.5)
    assert block(taking("a", 0, 10.0)).policies[0].figures["completion_mean_s"].sd is None


def test_the_best_is_marked_unless_all_are_the_same() -> None:
    found = block(taking("a", 0, 10.0, jain=0.5, makespan_s=7.0), taking("b", 0, 12.0, jain=0.9, makespan_s=7.0))
    a, b = found.policies
    assert (a.figures["completion_mean_s"].is_best, b.figures["completion_mean_s"].is_best) == (True, False)
    assert (a.figures["jain"].is_best, b.figures["jain"].is_best) == (False, True)
    assert not a.figures["makespan_s"].is_best
    assert not b.figures["makespan_s"].is_best


def test_policies_that_starve_a_few_jobs_are_named() -> None:
    results = [taking(name, 0, 10.0, jain=jain) for name, jain in (("dally", 0.0312), ("fifo", 0.5), ("mine", 0.099))]
    note = "a few jobs are slowed many times as much as the others, or starve: "
    assert build(question(), results).question.notes[-1] == (
        f"{note}dally (Jain's index 0.031, job resnet waited 2 h), mine (Jain's index 0.099, job resnet waited 2 h)"
    )
    assert not any(each.startswith(note) for each in build(question(), results[1:2]).question.notes)
    assert not any(each.startswith(note) for each in build(question(), [taking("a", 0, 1.0, jain=None)]).question.notes)


def test_what_waste_raises_has_no_best() -> None:
    found = block(taking("a", 0, 10.0, used=0.9, stops=1), taking("b", 0, 12.0, used=0.5, stops=9))
    assert not any(line.figures[name].is_best for line in found.policies for name in ("used", "stops"))


def test_the_only_policy_is_not_the_best() -> None:
    assert not any(figure.is_best for figure in block(taking("a", 0, 10.0)).policies[0].figures.values())


def test_a_figure_that_is_not_known_for_every_seed_is_not_known() -> None:
    a, b = block(
        *(taking("a", seed, 10.0, jain=0.5 if seed else None) for seed in (0, 1)),
        *(taking("b", seed, 9.0, jain=0.1) for seed in (0, 1)),
    ).policies
    assert a.figures["jain"].mean is None
    assert not b.figures["jain"].is_best


def test_seeds_in_which_a_policy_is_the_best_are_counted() -> None:
    results = [taking("a", 0, 10.0), taking("a", 1, 20.0), taking("b", 0, 11.0), taking("b", 1, 12.0)]
    a, b = block(*results).policies
    assert (a.wins, b.wins) == (1, 1)
    assert b.above_best == 0
    assert a.above_best == pytest.approx(15 / 11.5 - 1)
    assert "b has the shortest mean completion time, 11.5 s, in 1 of 2 seeds; a 30 % longer" in words.verdict(
        block(*results), 2, words.TimeUnit("s", 1.0, "seconds")
    )


def test_equal_policies_are_not_ranked() -> None:
    found = block(taking("a", 0, 10.0), taking("b", 0, 10.0))
    assert found.winners == []
    assert words.verdict(found, 1, words.TimeUnit("s", 1.0, "seconds")).startswith("all policies have the same")


def test_several_may_be_the_best() -> None:
    found = block(*(taking(name, 0, 10.0) for name in "abc"), taking("d", 0, 20.0))
    assert words.verdict(found, 1, words.TimeUnit("s", 1.0, "seconds")) == (
        "a, b and c have the shortest mean completion time, 10 s; d 100 % longer"
    )


def test_too_much_load_is_said_once() -> None:
    assert simulated().question.notes.count(OVERLOADED) == 1
    assert OVERLOADED not in build(question(), [taking("a", 0, 10.0)]).question.notes


def test_many_seeds_are_no_more_points_than_a_page_needs() -> None:
    curve = [(float(number), number / 200) for number in range(1, 201)]
    results = [replace(taking("a", seed, 10.0), completion_cdf=curve) for seed in range(50)]
    pooled = block(*results).policies[0].completion_cdf
    assert 200 <= len(pooled) <= 900
    assert pooled[-1][0] == 200
    assert all(abs(share - seconds / 200) < 0.02 for seconds, share in pooled)


CDF = st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(
    lambda times: [(seconds, (place + 1) / len(times)) for place, seconds in enumerate(sorted(times))]
)


@given(st.lists(CDF, min_size=1, max_size=5))
def test_seeds_together_are_a_distribution(curves: list[list[tuple[float, float]]]) -> None:
    results = [replace(taking("a", seed, 10.0), completion_cdf=curve) for seed, curve in enumerate(curves)]
    pooled = block(*results).policies[0].completion_cdf
    assert pooled == sorted(pooled)
    assert pooled[-1][1] == pytest.approx(1)
    middle_s = pooled[len(pooled) // 2][0]
    shares = [max((share for seconds, share in curve if seconds <= middle_s), default=0.0) for curve in curves]
    there = max(share for seconds, share in pooled if seconds <= middle_s)
    assert there == pytest.approx(sum(shares) / len(shares))
