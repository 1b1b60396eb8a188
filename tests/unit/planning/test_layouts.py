"""A layout as it is asked for, the target that it names, and its neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof import recommender
from ddlprof.base.errors import UserError
from ddlprof.planning.job import DescribedJob
from ddlprof.planning.layouts import LayoutQuestion, predict_layouts, target_of
from ddlprof.recommender import PredictionError, Workload
from ddlprof.recommender.layout import parse_layout
from tests.unit.recommender.made_up_layouts import JOB, MadeUpLayouts

H100 = ("gpu_model", "H100")
P5 = ("instance_type", "p5.48xlarge")


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommender, "Predictor", MadeUpLayouts)


def asked(text: str, **named: Any) -> LayoutQuestion:
    return LayoutQuestion(parse_layout(text), **named)


def target(text: str, machine: tuple[str, str] = H100, **named: Any) -> Any:
    assert JOB.transformer is not None
    return target_of(machine, asked(text, **named), JOB.transformer)[0]


def test_data_ranks_tell_the_number_of_gpus() -> None:
    found = target("tp8,pp4,dp16,zero1,mb2,ga16,selective")
    assert (found.placement, found.batch_per_gpu, found.grad_accum) == ((8,) * 64, 2, 16)
    assert (found.gpu_model, found.precision) == ("H100", "bf16")
    assert target("tp4,dp2,ga1", P5).placement == (8,)
    assert target("tp4,ga1").placement == (4,)
    assert target("tp4,pp8,dp2", ("instance_type", "p4d.24xlarge")).placement == (8,) * 8


def test_the_placement_tells_data_ranks() -> None:
    assert target("tp4,pp2,ga2", placement=(8, 8, 8, 8)).placement == (8, 8, 8, 8)
    assert target("tp8,ga2", nodes=4).placement == (8, 8, 8, 8)
    with pytest.raises(UserError, match="dp16 of the layout is not what is left of 32 GPUs: dp8"):
        target("tp4,dp16", placement=(8, 8, 8, 8))
    with pytest.raises(PredictionError, match="24 GPUs cannot be divided by tensor x pipeline x context = 16"):
        target("tp8,pp2", placement=(8, 8, 8))
    with pytest.raises(UserError, match="12 GPUs are no whole number of machines with 8: give --placement"):
        target("tp4,dp3")


def test_the_batch() -> None:
    assert target("dp8,mb2", global_batch=64).grad_accum == 4
    assert target("dp8,pp2,mb2,ga4", global_batch=64).grad_accum == 4
    assert target("dp8", micro_batch=4, grad_accum=3).batch_per_gpu == 4
    with pytest.raises(UserError, match="100 sequences is no multiple of 2 of a micro-batch x 8 data ranks"):
        target("dp8,mb2", global_batch=100)
    with pytest.raises(UserError, match="--global-batch 100 is not 4 micro-batches of 2 on 8 data ranks"):
        target("dp8,mb2,ga4", global_batch=100)
    with pytest.raises(UserError, match="mb2 of the layout contradicts --batch 4"):
        target("dp8,mb2", micro_batch=4)


def test_what_is_assumed_of_the_batch_is_said() -> None:
    assert JOB.transformer is not None
    found, assumed = target_of(H100, asked("pp4,dp2"), JOB.transformer)
    assert found.grad_accum == 16
    assert assumed == ("batch: none was named (ga or --global-batch), so 4 micro-batches for each stage",)
    assert target_of(H100, asked("dp8"), JOB.transformer)[0].grad_accum == 1
    assert target_of(H100, asked("pp4,dp2"), JOB.transformer, 64)[0].grad_accum == 32


def steps(text: str, vary: str | None = None, workload: Workload = JOB, **named: Any) -> dict[str, Any]:
    found = predict_layouts(DescribedJob("made-up", workload), [H100], asked(text, **named), vary)
    return {one.value: one for one in found}


def test_neighbours_keep_gpus_and_global_batch() -> None:
    found = steps("tp2,pp4,dp8,zero1,ga16", "pipeline")
    assert list(found) == ["1", "2", "4", "8", "16"]
    assert [(one.gpus, one.global_batch) for one in found.values()] == [(64, 128)] * 5
    assert [(one.data, one.target.grad_accum) for one in found.values()] == [
        (32, 4), (16, 8), (8, 16), (4, 32), (2, 64),
    ]  # fmt: skip
    assert found["4"].layout == parse_layout("tp2,pp4,zero1").layout
    assert found["4"].estimate is not None


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        ("tensor", ["1", "2", "4", "8"]),
        ("virtual", ["1", "2", "4"]),
        ("micro-batch", ["1", "2", "4", "8", "16"]),
        ("shard", ["none", "zero1", "zero2", "zero3"]),
        ("recompute", ["none", "selective", "full"]),
        ("context", ["1", "2", "4", "8"]),
    ],
)
def test_values_of_dimensions(dimension: str, values: list[str]) -> None:
    found = steps("tp2,pp4,dp8,ga16", dimension)
    assert list(found) == values
    assert all(one.estimate for one in found.values())


def test_a_neighbour_that_cannot_be_says_why() -> None:
    found = steps("pp4,dp2,ga1", "micro-batch")
    assert found["1"].estimate is not None
    assert found["2"].estimate is None
    assert "no multiple of 2 of a micro-batch x 2 data ranks" in found["2"].problem


def test_without_pipeline_there_are_no_virtual_stages() -> None:
    found = steps("pp4,vp2,dp2,ga8", "pipeline")
    assert found["1"].layout.virtual == 1
    assert found["2"].layout.virtual == 2


def test_what_cannot_be_is_an_error() -> None:
    with pytest.raises(PredictionError, match="16 heads cannot be divided by tensor 3"):
        steps("tp3,ga1")
    with pytest.raises(UserError, match="--vary takes one of tensor, pipeline"):
        steps("tp2,ga1", "speed")
    with pytest.raises(UserError, match="made-up: a layout needs the sizes of a transformer"):
        steps("tp2,ga1", workload=replace(JOB, transformer=None))
