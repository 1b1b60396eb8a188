"""A job that the recommender can predict, as a problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.predicted import (
    MOST_PARTS,
    NO_FLOPS,
    NOT_DIVIDED,
    PredictedTimes,
    joined_layers,
    layers_of,
    predicted_problem,
    staged_problem,
)
from ddlprof.model.operators import Layer, StepOperators
from ddlprof.recommender import Measurement, Predictor, Target, Workload

TESTBED = Devices(
    (GpuNode("a", 2, 10.0, 5.0, "V100-SXM2-16GB", memory_gib=16), GpuNode("b", 1, 10.0, 5.0, "P100-PCIE-16GB"))
)
JOB = Workload(
    "net", layers=2, gradient_bytes=1e8, global_batch=100,
    measurements=[Measurement(gpu_model="V100", placement=(1,), batch_per_gpu=64, step_s=0.05, compute_s=0.05)],
)  # fmt: skip


def test_a_device_takes_as_long_as_the_predictor_says_for_one_gpu() -> None:
    times = PredictedTimes(JOB, TESTBED)
    for device, gpu in ((0, "V100-SXM2-16GB"), (2, "P100-PCIE-16GB")):
        for samples in (5, 32, 64, 1024):
            expected = Predictor(JOB).predict(Target(gpu_model=gpu, batch_per_gpu=samples)).step_s
            assert times.work(device, samples).total_s == pytest.approx(expected)
        between = Predictor(JOB).predict(Target(gpu_model=gpu, batch_per_gpu=617)).step_s
        assert times.work(device, 617).total_s == pytest.approx(between, rel=0.01)
    assert times.work(1, 64) == times.work(0, 64)


def test_layers_have_the_shares_of_their_operations() -> None:
    layers = (Layer("a", 4e6, 1e9), Layer("norm", 1e3, 0.0), Layer("b", 8e6, 3e9))
    parts, notes = layers_of(replace(JOB, step=StepOperators(8, "fp32", (), layers=layers)))
    assert [(part.name, part.gradient_bytes, part.share) for part in parts] == [
        ("a", 4e6, 0.25), ("norm", 1e3, 0.0), ("b", 8e6, 0.75),
    ]  # fmt: skip
    assert not notes
    idle = tuple(replace(layer, forward_flops=0.0) for layer in layers)
    parts, notes = layers_of(replace(JOB, step=StepOperators(8, "fp32", (), layers=idle)))
    assert [part.share for part in parts] == [pytest.approx(1 / 3)] * 3
    assert notes == [NO_FLOPS]


def test_the_batch_is_the_jobs_unless_another_is_asked_for() -> None:
    assert predicted_problem(JOB, TESTBED)[0].batch == 100
    assert predicted_problem(JOB, TESTBED, 7)[0].batch == 7


def test_layers_between_which_too_much_passes_or_not_known_what_stay_together() -> None:
    known = [Layer(f"l{number}", 8.0, 1.0, None, 80.0 if number else None, 40.0) for number in range(3)]
    parts = joined_layers([*known, Layer("tied", 8.0, 1.0, saved_bytes=0.0)], 8, 16.0)
    assert [(each.name, each.layers, each.input_bytes) for each in parts] == [
        ("l0", 1, 2.0),
        ("l1", 1, 10.0),
        ("l2", 2, 10.0),
    ]
    assert [each.saved_bytes for each in parts] == [5.0, 5.0, 5.0]
    assert sum(each.share for each in parts) == pytest.approx(1)
    wide = [Layer(f"l{n}", 1.0, 1.0, None, (2.0 if n % 2 else 1.0) if n else None, 0.0) for n in range(2 * MOST_PARTS)]
    joined = joined_layers(wide, 1, 1.0)
    assert len(joined) == MOST_PARTS
    assert {each.input_bytes for each in joined} == {1.0}  # divided where less passes
    assert {each.layers for each in joined} == {2}


def test_a_run_whose_layers_have_no_sizes_between_them_is_not_divided() -> None:
    layers = (Layer("a", 4e6, 1e9), Layer("b", 8e6, 3e9))
    workload = replace(JOB, step=StepOperators(64, "fp32", (), layers=layers))
    problem, _ = predicted_problem(workload, TESTBED)
    staged, notes = staged_problem(workload, problem)
    assert staged is None
    assert notes == [NOT_DIVIDED]
