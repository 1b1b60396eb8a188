"""Predictions of one job: classes, intervals, what measurements do to them, and what cannot be predicted."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddlprof.instance_catalog import CatalogError
from ddlprof.recommender import (
    Estimate,
    Measurement,
    PredictionError,
    Predictor,
    Target,
    Workload,
    predict,
    transformer,
)
from ddlprof.recommender.communication.job_parameters import FitEstimate, JobFit
from ddlprof.recommender.compute.micro_batch import ComputeEstimate, ComputeModel
from ddlprof.recommender.estimate import CLASSES, ComputePhases, Range

T4 = "g4dn.12xlarge"


def measured(placement: tuple[int, ...], batch: int, step_s: float, exposed_s: float | None = None) -> Measurement:
    return Measurement(T4, placement=placement, batch_per_gpu=batch, step_s=step_s, exposed_comm_s=exposed_s)


ALONE = [measured((1,), 6, 0.5, 0.0), measured((1,), 12, 0.9, 0.0)]
BERT = Workload("bert", layers=76, parameter_tensors=206, gradient_bytes=440e6, measurements=ALONE)
SEVERAL = [measured((4,), 12, 1.0, 0.1), measured((1, 1), 12, 1.5, 0.6)]
KNOWN = replace(BERT, measurements=[*ALONE, *SEVERAL])


def at(*placement: int, batch: int = 12, **rest: object) -> Target:
    return Target(instance_type=T4, placement=placement, batch_per_gpu=batch, **rest)  # type: ignore[arg-type]


def classes_of(estimate: Estimate) -> float:
    return sum(estimate.times.of(name) for name in CLASSES)


def width(estimate: Estimate) -> float:
    return estimate.high_s / estimate.low_s


@pytest.mark.parametrize("placement", [(1,), (4,), (1, 1), (1, 3), (4, 4, 4, 4)])
@pytest.mark.parametrize("workload", [BERT, KNOWN])
def test_classes_add_up_and_are_not_negative(workload: Workload, placement: tuple[int, ...]) -> None:
    estimate = predict(workload, at(*placement))
    assert classes_of(estimate) == pytest.approx(estimate.step_s, rel=1e-9)
    assert min(estimate.data_s, estimate.h2d_s, estimate.interconnect_s, estimate.network_s, estimate.other_s) >= 0
    assert estimate.low_s < estimate.step_s < estimate.high_s


def test_one_gpu_at_a_measured_batch_is_its_measurement() -> None:
    estimate = predict(BERT, at(1))
    assert estimate.step_s == pytest.approx(0.9, rel=0.01)
    assert estimate.interconnect_s == estimate.network_s == 0


def test_what_other_work_took_is_not_carried_over() -> None:
    def carrying(other_s: float, h2d_s: float, queued_share: float) -> Estimate:
        on_cpu = Measurement(placement=(1,), batch_per_gpu=12, step_s=9.0, other_s=other_s, h2d_s=h2d_s,
                             queued_share=queued_share)  # fmt: skip
        return predict(replace(BERT, measurements=[on_cpu], flops_per_sample=1e11), at(1))

    quiet, busy, unknown = carrying(0.1, 0.05, 0.0), carrying(0.5, 0.25, 0.8), carrying(0.5, 0.25, 0.0)
    assert (busy.other_s, busy.h2d_s) == (pytest.approx(quiet.other_s), pytest.approx(quiet.h2d_s))
    assert busy.low_s == pytest.approx(quiet.low_s)
    assert busy.high_s == pytest.approx(quiet.high_s + 0.6)
    assert unknown.other_s == 0.5


def test_what_was_timed_as_communication_of_one_gpu_is_part_of_its_step() -> None:
    timed = replace(BERT, measurements=[measured((1,), 12, 0.9, exposed_s=0.05)])
    assert predict(timed, at(1)).step_s == pytest.approx(0.9, rel=0.01)


@pytest.mark.parametrize("seen", SEVERAL)
def test_a_measured_target_returns_about_its_measurement(seen: Measurement) -> None:
    estimate = predict(KNOWN, at(*seen.placement))
    assert estimate.step_s == pytest.approx(seen.step_s, rel=0.02)
    assert estimate.interconnect_s + estimate.network_s == pytest.approx(seen.exposed_comm_s, abs=0.03)


def test_one_machine_pays_nothing_for_the_network_and_two_do() -> None:
    assert predict(BERT, at(4)).network_s == 0
    assert predict(BERT, at(2, 2)).network_s > 0.1


def test_two_nodes_are_slower_than_four_where_flows_are_capped() -> None:
    assert predict(BERT, at(2, 2)).step_s > predict(BERT, at(1, 1, 1, 1)).step_s > predict(BERT, at(4)).step_s


def test_more_bytes_take_longer() -> None:
    dearer = replace(BERT, gradient_bytes=880e6)
    assert predict(dearer, at(4, 4)).network_s > 1.5 * predict(BERT, at(4, 4)).network_s


def test_measurements_narrow_the_interval() -> None:
    full = replace(KNOWN, measurements=[*KNOWN.measurements, measured((4, 4), 12, 2.6, 1.7)])
    before, few, same = (width(predict(workload, at(4, 4))) for workload in (BERT, KNOWN, full))
    assert before > few > same


def test_measurements_without_exposed_time_still_correct_the_prediction() -> None:
    slow = replace(BERT, measurements=[*ALONE, measured((4, 4), 12, 6.0)])
    assert predict(slow, at(4, 4)).step_s == pytest.approx(6.0, rel=0.05)
    assert predict(slow, at(3, 3)).step_s > 1.3 * predict(BERT, at(3, 3)).step_s


def test_points_that_contradict_the_form_are_said_to_and_widen() -> None:
    says = "may be of a cluster whose steps scatter"
    contradicting = replace(BERT, measurements=[*ALONE, measured((4,), 12, 2.4, 1.5), measured((1, 1), 12, 1.0, 0.1)])
    plain, doubted = (predict(job, at(4, 4)) for job in (KNOWN, contradicting))
    assert not any(says in line for line in plain.basis)
    assert any(says in line for line in doubted.basis)
    assert width(doubted) > 1.5 * width(plain)
    assert predict(contradicting, at(4)).step_s == pytest.approx(2.4, rel=0.02)


def test_a_machine_described_by_hand() -> None:
    job = Workload(
        "job", gradient_bytes=100e6, parameter_tensors=161,
        measurements=[Measurement(placement=(1,), batch_per_gpu=32, step_s=0.2, gpu_model="RTX 2080 Ti",
                                  instance_type=None, interconnect="PCIe3", network_gbps=50)],
    )  # fmt: skip
    target = Target(
        gpu_model="RTX2080Ti-11GB",
        interconnect="PCIe3 (no NVLink)",
        network_gbps=50,
        placement=(8, 8),
        batch_per_gpu=32,
    )
    slow, fast = predict(job, target), predict(job, replace(target, network_gbps=400))
    assert slow.step_s > fast.step_s > 0.2


def test_accumulation_sends_once_for_all_forward_passes() -> None:
    once, four = predict(BERT, at(4, 4)), predict(BERT, at(4, 4, grad_accum=4))
    assert four.compute_s == pytest.approx(4 * once.compute_s, rel=0.01)
    assert four.network_s == pytest.approx(once.network_s, rel=0.2)
    assert "gradients reduced once for 4 forward passes" in four.basis


def test_fsdp_sends_half_as_much_again_and_is_less_sure() -> None:
    ddp, fsdp = predict(BERT, at(4, 4)), predict(BERT, at(4, 4, strategy="fsdp"))
    assert fsdp.network_s > 1.2 * ddp.network_s
    assert width(fsdp) > width(ddp)
    assert any("1.5 times the bytes" in line for line in fsdp.basis)


def test_outside_the_fit_is_extrapolated_and_wider() -> None:
    near, far = predict(BERT, at(4, 4, 4, 4)), predict(BERT, at(*[4] * 8))
    assert not near.extrapolated
    assert far.extrapolated
    assert width(far) > width(near)
    assert any("8 nodes" in line for line in far.basis)


def test_the_loader_limits_a_machine_with_few_cpus() -> None:
    hungry = replace(BERT, loader_cpu_s_per_sample=10.0)
    estimate = predict(hungry, at(4))
    assert estimate.step_s == pytest.approx(10.0 * 12 * 4 / 48)
    assert classes_of(estimate) == pytest.approx(estimate.step_s)
    assert estimate.data_s > 1


def test_copies_grow_with_the_batch_and_other_time_does_not() -> None:
    row = replace(ALONE[1], step_s=1.0, h2d_s=0.06, other_s=0.04, data_s=0.0)
    estimate = predict(replace(BERT, measurements=[row]), at(1, batch=24))
    assert estimate.h2d_s == pytest.approx(0.12)
    assert estimate.other_s == pytest.approx(0.04)


def test_time_carried_over_from_another_machine_widens_the_interval() -> None:
    on_a_cpu = Measurement(
        placement=(1,), batch_per_gpu=12, step_s=10.0, compute_s=1.0, data_s=8.5, h2d_s=0.0, other_s=0.5
    )
    waited = replace(BERT, flops_per_sample=1e11, measurements=[on_a_cpu])
    never = replace(waited, measurements=[replace(on_a_cpu, step_s=1.0, data_s=0.0, other_s=0.0)])
    estimate, busy = predict(waited, at(1)), predict(never, at(1))
    assert estimate.data_s + estimate.other_s > 0.9 * estimate.step_s
    assert estimate.high_s > 1.7 * estimate.step_s
    assert any("half to twice" in sentence for sentence in estimate.basis)
    assert not any("half to twice" in sentence for sentence in busy.basis)


def test_time_measured_on_such_a_gpu_does_not_widen_the_interval() -> None:
    with_input = replace(BERT, measurements=[replace(ALONE[1], step_s=1.8, data_s=0.8, other_s=0.1)])
    without = replace(BERT, measurements=[ALONE[1]])
    assert width(predict(with_input, at(1))) <= width(predict(without, at(1)))


def test_a_suggestion_starts_from_the_interval_that_is_shown() -> None:
    target = at(4, 4, batch=24)
    suggestion, estimate = Predictor(BERT).next_measurement(target), predict(BERT, target)
    assert suggestion is not None
    assert suggestion.share_now == pytest.approx(estimate.high_s / estimate.step_s - 1)


def test_a_fraction_of_a_gpu_cannot_be_predicted() -> None:
    with pytest.raises(PredictionError, match=r"g6f\.large: a fraction of a GPU .*choose a type with whole GPUs"):
        predict(BERT, Target(instance_type="g6f.large"))


def test_the_suggested_measurement_narrows_the_interval() -> None:
    suggestion = Predictor(BERT).next_measurement(at(4, 4))
    assert suggestion is not None
    assert suggestion.share_then < suggestion.share_now
    assert suggestion.placement != (1,)


def test_a_measurement_that_costs_less_is_suggested_where_it_teaches_nearly_as_much() -> None:
    dear = Predictor(BERT).next_measurement(at(4, 4))
    assert dear is not None
    assert len(dear.placement) == 2
    cheap = Predictor(BERT).next_measurement(at(4, 4), usd_of=lambda placement: 100.0 ** len(placement))
    assert cheap is not None
    assert len(cheap.placement) == 1
    assert dear.share_then <= cheap.share_then < cheap.share_now


def test_the_smallest_batch_is_suggested_since_nothing_hides_behind_it() -> None:
    suggestion = Predictor(BERT).next_measurement(at(4, 4))
    assert suggestion is not None
    assert suggestion.batch_per_gpu == 6


def test_a_placement_measured_at_a_large_batch_may_be_measured_again_at_a_small_one() -> None:
    hidden = replace(BERT, measurements=[*ALONE, measured((4,), 12, 1.0, 0.1), measured((4, 4), 12, 2.5, 1.6)])
    suggestion = Predictor(hidden).next_measurement(at(4, 4, batch=6))
    assert suggestion is not None
    assert (suggestion.placement, suggestion.batch_per_gpu) not in {((4,), 12), ((4, 4), 12)}


def test_intervals_widen_with_every_doubling_of_nodes_beyond_the_fit() -> None:
    widths = [width(predict(KNOWN, at(*[4] * nodes))) for nodes in (4, 8, 16, 32)]
    assert widths == sorted(widths)
    assert widths[2] > 1.15 * widths[0]


def test_nothing_is_suggested_for_one_gpu_that_was_measured() -> None:
    assert Predictor(BERT).next_measurement(at(1)) is None


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"instance_type": T4, "placement": (5,)}, "has 4 GPUs"),
        ({"instance_type": T4, "placement": ()}, "target: placement: 1 to 100000 items are expected, not 0"),
        ({"instance_type": T4, "placement": (0, 4)}, "target: placement[0]: a whole number from 1 to 100000"),
        ({"instance_type": T4, "batch_per_gpu": 0}, "target: batch_per_gpu: a whole number from 1 to 1000000000"),
        ({"instance_type": T4, "strategy": "magic"}, "not known"),
        ({}, "give an instance type or a GPU model"),
    ],
)
def test_targets_that_cannot_be(target: dict[str, Any], says: str) -> None:
    with pytest.raises(PredictionError, match=re.escape(says)) as error:
        predict(BERT, Target(**target))
    assert "\n" not in str(error.value)


def test_unknown_names_name_the_closest() -> None:
    with pytest.raises(CatalogError, match=re.escape(T4)):
        predict(BERT, Target(instance_type="g4dn.12xlarg"))
    with pytest.raises(CatalogError, match="T4"):
        predict(BERT, Target(gpu_model="T44"))


def test_nothing_measured_and_no_flops() -> None:
    with pytest.raises(PredictionError, match="FLOPs"):
        predict(Workload("empty"), at(1))


def test_several_gpus_need_the_size_of_the_gradients() -> None:
    with pytest.raises(PredictionError, match="gradient_bytes"):
        predict(replace(BERT, gradient_bytes=None), at(4))


def test_a_predictor_gives_what_predict_gives() -> None:
    predictor = Predictor(KNOWN)
    for target in (at(4, 4), at(1, 1), at(4, 4)):
        assert predictor.predict(target) == predict(KNOWN, target)
    assert math.isfinite(predictor.predict(at(4, 4)).step_s)


def test_what_was_asked_before_changes_nothing() -> None:
    """The links of a fitted cluster are surer than others of that GPU."""
    fitted = Target("g4dn.12xlarge", placement=(4, 4), batch_per_gpu=12)
    other = Target(gpu_model="T4", interconnect="pcie3", network_gbps=10, placement=(4, 4), batch_per_gpu=12)
    asked_after = Predictor(BERT)
    assert asked_after.predict(fitted) == Predictor(BERT).predict(fitted)
    assert asked_after.predict(other) == Predictor(BERT).predict(other)


def test_where_no_number_follows_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "^bert: no step time follows from these measurements"
    monkeypatch.setattr(JobFit, "predict", lambda *_: FitEstimate(math.nan, 0.0, 0.1))
    with pytest.raises(PredictionError, match=says):
        predict(BERT, at(4, 4))

    def singular(*_: object) -> None:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(JobFit, "__init__", singular)
    with pytest.raises(PredictionError, match=says):
        predict(BERT, at(4, 4))


def test_a_question_that_needs_operators_says_that_it_was_not_answered() -> None:
    asked = predict(BERT, at(1, optimizer="adamw", compiled=True))
    assert "the optimizer adamw, torch.compile: not taken into account" in " ".join(asked.basis)
    assert asked.step_s == predict(BERT, at(1)).step_s
    assert "not taken into account" not in " ".join(predict(BERT, at(1)).basis)


def test_phases_are_those_of_the_micro_batches_and_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ComputeEstimate(Range(1.0, 0.9, 1.1), (), False, ComputePhases(0.2, 0.6, 0.2))
    monkeypatch.setattr(ComputeModel, "estimate", lambda *_, **__: found)
    phases = predict(BERT, at(1, grad_accum=4)).phases
    assert phases is not None
    assert phases.forward_s + phases.backward_s + phases.optimizer_s == pytest.approx(3.4)
    assert phases.forward_s / phases.optimizer_s == pytest.approx(4.0)


def test_micro_batches_share_one_update_and_measured_ones_do_so_already() -> None:
    found = ComputeEstimate(Range(1.0, 0.9, 1.1), (), False, ComputePhases(0.2, 0.6, 0.2))
    assert found.step_s(1) == pytest.approx(1.0)
    assert found.step_s(4) == pytest.approx(3.4)
    assert found.step_s(4, measured_passes=4) == pytest.approx(4.0)
    assert found.step_s(8, measured_passes=4) < 8.0
    assert replace(found, phases=None).step_s(4) == pytest.approx(4.0)


@pytest.mark.parametrize("links", [("pcie5", "nvlink4"), ("nvlink4", "pcie5")])
def test_machines_with_other_links_are_told_apart_whatever_comes_first(links: tuple[str, str]) -> None:
    def step_s(predictor: Predictor, link: str) -> float:
        target = Target(gpu_model="H100-80GB-SXM", interconnect=link, placement=(8,), batch_per_gpu=12)
        return predictor.predict(target).step_s

    together = Predictor(BERT)
    assert [step_s(together, link) for link in links] == [step_s(Predictor(BERT), link) for link in links]


def test_interconnect_is_that_of_all_ranks_in_one_machine() -> None:
    apart, packed = (predict(BERT, at(*placement)).interconnect_s for placement in ((1, 1), (2,)))
    assert apart == pytest.approx(packed, rel=0.01)


@pytest.mark.parametrize(("asked", "gpus", "times"), [("ddp", 8, 8.0), ("fsdp", 8, 1.0), ("fsdp", 4, 2.0)])
def test_an_update_is_shared_out_as_the_strategy_says(asked: str, gpus: int, times: float) -> None:
    ran = replace(measured((8,), 12, 1.0, 0.1), strategy="fsdp", instance_type="p4d.24xlarge")
    predictor = Predictor(replace(BERT, measurements=[ran]))
    assert predictor._measured.update_share(asked, gpus) == pytest.approx(times)


@pytest.mark.parametrize("job", [KNOWN, transformer(layers=8, hidden=1024, heads=8, vocab=32000, seq=1024)])
def test_what_was_predicted_before_changes_nothing(job: Workload) -> None:
    """AMD's modules have more links to one another the more of them are used."""
    targets = [Target("Standard_ND96isr_MI300X_v5", placement=(gpus,), batch_per_gpu=12) for gpus in (2, 8)]
    both = Predictor(job)
    assert [both.predict(target) for target in targets] == [predict(job, target) for target in targets]
