"""What is said of a job that spends much of its time evaluating."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.sources import SourceShare
from ddlprof.model import source_locations
from ddlprof.model.source_locations import SourceLocation
from tests.unit.analysis.rules.input_cases import job
from tests.unit.analysis.rules.loop_cases import job as of_job
from tests.unit.analysis.rules.loop_cases import line
from tests.unit.analysis.rules.made_up import facts
from tests.unit.analysis.rules.test_rules import found


@pytest.mark.parametrize("graded", [True, False, None])
def test_only_an_evaluation_with_gradients_is_told_to_go_without(graded: bool | None) -> None:
    (finding,) = found("evaluation_share", facts(job=job("evaluation", 300), evaluates_with_gradients=graded))
    assert ("torch.no_grad()" in finding.next) == bool(graded)
    assert ("a run with it tells" in finding.next) == bool(graded) == finding.saves_part  # all of it is no gain of that


@pytest.mark.parametrize(
    ("samples", "batch", "larger"),
    [(1, 128, True), (32, 128, True), (33, 128, False), (None, 128, False), (1, None, False)],
)
def test_an_evaluation_of_small_batches_is_told_to_take_larger_ones(
    samples: int | None, batch: int | None, larger: bool
) -> None:
    given = facts(job=job("evaluation", 300), evaluated_samples=samples, batch_per_rank=batch)
    (finding,) = found("evaluation_share", given)
    assert finding.next.startswith("evaluate less often, on fewer batches, or in another process")
    assert ("no larger than those of the training: in larger batches" in finding.next) == larger == finding.saves_part


def test_an_evaluation_that_may_choose_actions_is_not_told_to_take_larger_batches() -> None:
    known: dict[str, Any] = {"job": job("evaluation", 300), "evaluated_samples": 1, "batch_per_rank": 64}
    env, own = SourceShare(SourceLocation("gym/core.py:9 step", source_locations.ENVIRONMENT), 0.2, False), line("")
    for other in (
        facts(evaluating=replace(own, shares=[*own.shares, env]), **known),
        facts({"compute": 97, "other": 3, "data": None}, **known),  # no loader
    ):
        (finding,) = found("evaluation_share", other)
        assert "larger batches" not in finding.next
    (finding,) = found("evaluation_share", facts(evaluating=own, **known))
    assert "larger batches" in finding.next


@pytest.mark.parametrize("known", [{"evaluates_with_gradients": True}, {"evaluated_samples": 1, "batch_per_rank": 64}])
def test_a_part_of_each_rank_or_a_line_saves_more_than_a_part_that_nobody_knows(known: dict[str, Any]) -> None:
    given = facts(job=job("evaluation", 300), **known)
    saves = {
        "alone": replace(given, lone_evaluator=0),
        "line": replace(given, evaluating=line(source_locations.JOINS)),
        "neither": given,
    }
    for name, each in saves.items():
        (finding,) = found("evaluation_share", each)
        assert finding.saves_part == (name == "neither")


def test_a_single_evaluation_is_told_if_it_bounds_the_job_and_not_to_come_less_often() -> None:
    once = job("evaluation", 440, times=1)
    assert not found("evaluation_share", facts(job=once))  # a test at the end
    (finding,) = found("evaluation_share", facts(job=replace(once, trains_on=True)))
    assert finding.evidence.startswith("1 evaluation: ")
    assert finding.severity == "warning"
    assert finding.next.startswith("evaluate on fewer batches")


@pytest.mark.parametrize(("alone", "told"), [(0, True), (None, False)])
def test_what_one_rank_evaluates_is_divided(alone: int | None, told: bool) -> None:
    (finding,) = found("evaluation_share", facts(job=job("evaluation", 300), lone_evaluator=alone))
    assert finding.next.startswith("each rank a part of it") == told
    assert ("rank 0" in finding.title) == told


@pytest.mark.parametrize(
    ("what", "cure"),
    [(source_locations.JOINS, "a list that is joined once"), (source_locations.EVALUATION, None),
     ("data per sample", None)],
)  # fmt: skip
def test_the_line_that_an_evaluation_is_at_is_told_beside_its_forwards(what: str, cure: str | None) -> None:
    (finding,) = found("evaluation_share", facts(job=of_job(60.0, 0.0, 20.0), evaluating=line(what)))
    assert finding.next.endswith("evaluate less often, on fewer batches, or in another process")
    assert ("train.py:9" in finding.evidence) is (cure is not None)
    assert cure is None or cure in finding.next
