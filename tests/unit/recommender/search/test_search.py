"""The fastest layout of a made-up predictor, which can be found by trying all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.recommender import PredictionError, Target, Workload, transformer
from ddlprof.recommender.estimate import Estimate
from ddlprof.recommender.layout import Layout, parse_layout, require_layouts
from ddlprof.recommender.layouts.predict import LayoutPredictor
from ddlprof.recommender.search.memory import memory_of
from ddlprof.recommender.search.rules import Space
from ddlprof.recommender.search.search import LAUNCHER, LayoutSearch, SearchResult, Tried
from ddlprof.recommender.target import Machine, default_catalog, machine_from_type
from tests.unit.recommender.made_up_layouts import JOB, MadeUpLayouts, gib_of

MODEL = require_layouts(JOB.transformer, "job")
LARGE = transformer(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256, seq=8192)


def memory(layout: Layout, gpus: int, size: int, count: int) -> tuple[float, float]:
    gib = gib_of(Target(gpu_model="H100", placement=(8,) * (gpus // 8), batch_per_gpu=size, layout=layout))
    return gib, gib


def machine(name: str = "p5.48xlarge") -> Machine:
    return machine_from_type(default_catalog().instance(name), default_catalog())


def search(predictor: MadeUpLayouts | None = None, batch: int = 256) -> LayoutSearch:
    return LayoutSearch(MODEL, batch, predictor or MadeUpLayouts(), memory, "bf16")


def predicted(found: SearchResult) -> list[Tried]:
    return [each for each in found.tried if each.estimate]


def test_the_best_is_the_fastest_of_all_that_fit() -> None:
    found = search().on(machine(), (8,) * 8, 60.0)
    assert found.best is not None
    assert found.best.estimate is not None
    steps = [each.estimate.step_s for each in predicted(found) if each.estimate]
    assert found.best.estimate.step_s == min(steps)
    assert len(steps) > 20
    assert found.best.estimate.basis == ("made up",)
    assert all(each.memory_gib is not None and each.memory_gib <= 60.0 for each in predicted(found))


def test_the_least_recomputation_that_fits_is_taken() -> None:
    """Without recomputation, one sequence on two tensor ranks keeps 15 GiB beside 20 of states; two keep 30."""
    found = search().on(machine(), (8,) * 8, 45.0)
    of = {(each.layout.text(), each.micro_batch): each for each in found.tried if not each.reason}
    assert ("tp2,zero1", 1) in of
    assert ("tp2,zero1,selective", 1) not in of
    assert ("tp2,zero3", 1) not in of
    assert ("tp2,zero1,selective", 2) in of
    assert ("tp2,zero3", 2) in of
    left_out = {(each.layout.text(), each.micro_batch): each.reason for each in found.tried if each.reason}
    assert left_out["tp2,zero1", 2] == "memory"


def test_only_what_fits_is_predicted() -> None:
    predictor = MadeUpLayouts()
    found = search(predictor).on(machine(), (8,) * 8, 25.0)
    assert len(predictor.asked) == len(predicted(found)) < len(found.tried) / 2
    assert all(gib_of(target) <= 25.0 for target in predictor.asked)


@pytest.mark.parametrize("job", [JOB, LARGE])
def test_no_layout_is_left_out_that_a_prediction_lets_fit(job: Workload) -> None:
    model = require_layouts(job.transformer, "job")
    real, of = LayoutPredictor(job, default_catalog()), memory_of(job)
    for option, rule in Space(model, 64, 8, 256).options():
        if not rule:
            target = Target("p5.48xlarge", (8,) * 8, option.micro_batch, "bf16", grad_accum=option.micro_batches)
            memory = real.memory(replace(target, layout=option.layout))
            expected_gib, needed_gib = of(option.layout, 64, option.micro_batch, option.micro_batches)
            assert job is JOB or expected_gib == pytest.approx(memory.gib, rel=0.1)  # a small model is mostly its head
            assert needed_gib <= memory.high / 2**30 * (1 + 1e-9)


def test_nothing_fits() -> None:
    found = search().on(machine(), (8,) * 8, 1.0)
    assert found.best is None
    assert not predicted(found)


def test_machines_that_are_alike_are_asked_about_once() -> None:
    predictor = MadeUpLayouts()
    looked = search(predictor)
    one = looked.on(machine("p5e.48xlarge"), (8,) * 8, 60.0)
    asked = len(predictor.asked)
    assert asked
    assert looked.on(machine("p5en.48xlarge"), (8,) * 8, 60.0) is one
    assert len(predictor.asked) == asked
    assert looked.on(machine("p5.48xlarge"), (8,) * 8, 60.0) is not one
    assert looked.on(machine("p5e.48xlarge"), (8,) * 16, 60.0) is not one


def test_without_nvlink_there_are_no_tensor_ranks() -> None:
    found = search().on(replace(machine(), link="pcie"), (8,) * 8, 60.0)
    assert {each.layout.tensor for each in found.tried} == {1}


def test_a_rack_that_nvlink_joins_has_more_tensor_ranks_than_a_machine() -> None:
    found = search().on(machine("p6e-gb200.36xlarge"), (4,) * 16, 60.0)
    assert {each.layout.tensor for each in found.tried} == {1, 2, 4, 8, 16}


def test_what_cannot_be_launched_is_not_tried() -> None:
    predictor = MadeUpLayouts()
    looked = LayoutSearch(
        MODEL, 256, predictor, memory, "bf16", allows=lambda layout: layout.pipeline == 1 != layout.tensor
    )
    found = looked.on(machine(), (8,) * 8, 60.0)
    assert predictor.asked
    assert all(each.layout and each.layout.pipeline == 1 != each.layout.tensor for each in predictor.asked)
    assert LAUNCHER in {each.reason for each in found.tried}
    assert LAUNCHER not in {each.reason for each in search().on(machine(), (8,) * 8, 60.0).tried}


class Fails(MadeUpLayouts):
    def predict(self, target: Target) -> Estimate:
        raise PredictionError("nothing is known")


def test_what_cannot_be_predicted_says_so() -> None:
    found = search(Fails()).on(machine(), (8,) * 8, 60.0)
    assert found.best is None
    assert {each.reason for each in found.tried if each.memory_gib and each.memory_gib <= 60.0} == {
        "not predictable: nothing is known"
    }


def test_targets_are_what_was_asked_for() -> None:
    predictor = MadeUpLayouts()
    LayoutSearch(MODEL, 256, predictor, memory, "fp8", "sgd").on(machine(), (8,) * 8, 60.0)
    target = predictor.asked[0]
    assert (target.instance_type, target.placement, target.precision, target.optimizer) == (
        "p5.48xlarge", (8,) * 8, "fp8", "sgd",
    )  # fmt: skip
    texts = [each.layout.text() for each in predictor.asked if each.layout]
    assert len(set(zip(texts, (each.batch_per_gpu for each in predictor.asked), strict=True))) == len(texts)
    assert all(parse_layout(text).layout == each.layout for text, each in zip(texts, predictor.asked, strict=True))


@pytest.mark.parametrize("gpus", [64, 512])
def test_the_answer_does_not_depend_on_the_order(gpus: int) -> None:
    found = search().on(machine(), (8,) * (gpus // 8), 60.0)
    again = search().on(machine(), (8,) * (gpus // 8), 60.0)
    assert found.best == again.best
