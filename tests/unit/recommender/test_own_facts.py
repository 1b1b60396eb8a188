"""A catalogue and coefficients of one's own replace the shipped ones everywhere, and a machine need not be named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof import instance_catalog
from ddlprof.instance_catalog import Catalog, CatalogError, InstanceType, Price
from ddlprof.recommender import (
    Coefficients,
    Measurement,
    PredictionError,
    Predictor,
    Target,
    Workload,
    predict,
    recommend,
)

OURS = InstanceType("lab", "rack.4xt4", "rack", "T4", 4, 1.0, gpu_memory_gib=16.0, network_gbps=100.0, offered=True)
PRICES = (Price("lab", "any", "rack.4xt4", "on_demand", 2.0, "2026-11-01", "read"),)
MEASURED = Measurement("rack.4xt4", placement=(1,), batch_per_gpu=32, step_s=0.2, exposed_comm_s=0.0)
JOB = Workload("net", layers=54, parameter_tensors=161, gradient_bytes=1e8, measurements=[MEASURED])


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    """Without a user's overlay."""
    return instance_catalog.load(None)


@pytest.fixture
def mine(shipped: Catalog) -> Catalog:
    """The shipped catalogue with a machine that nobody else knows."""
    return replace(shipped, instances=(*shipped.instances, OURS), prices=(*shipped.prices, *PRICES))


def test_plans_are_predicted_with_the_catalogue_that_is_given(mine: Catalog) -> None:
    plans = recommend(
        JOB, samples=1e6, budget_s=86400, catalog=mine, instance_types=["rack.4xt4", "g4dn.12xlarge"], max_nodes=2
    )
    ours = [plan for plan in plans if plan.instance_type == "rack.4xt4"]
    assert [plan.reason for plan in ours] == ["", ""]
    assert all(plan.cost_usd for plan in ours)
    with pytest.raises(CatalogError, match=r"rack\.4xt4"):
        recommend(JOB, samples=1e6, budget_s=86400)


def test_a_type_whose_gpu_the_catalogue_lacks_is_one_line(shipped: Catalog) -> None:
    lab = Catalog((replace(OURS, gpu_model="T44"),), shipped.gpus, PRICES)
    with pytest.raises(CatalogError, match="T44"):
        recommend(replace(JOB, measurements=[replace(MEASURED, instance_type=None, gpu_model="T4")]),
                  samples=1e6, budget_s=86400, catalog=lab)  # fmt: skip


def test_coefficients_of_ones_own_hold_for_computing_and_for_communicating() -> None:
    job = replace(JOB, measurements=[], flops_per_sample=24e9)
    alone, together = Target(gpu_model="T4", batch_per_gpu=32), Target("g4dn.12xlarge", (4, 4), 32)
    shipped = Coefficients.shipped()
    flops = shipped.compute.learned["flops"]
    gpus = {cell: replace(effect, mean=effect.mean + 1.0) for cell, effect in flops.gpus.items()}
    learned = {**shipped.compute.learned, "flops": replace(flops, gpus=gpus)}
    slow = replace(shipped, compute=replace(shipped.compute, learned=learned))
    assert predict(job, alone, coefficients=slow).step_s > 2 * predict(job, alone).step_s
    inter = tuple(replace(row, gb_s=row.gb_s / 10) for row in shipped.communication.between)
    far = replace(shipped, communication=replace(shipped.communication, between=inter))
    before, after = predict(job, together), predict(job, together, coefficients=far)
    assert after.network_s > 2 * before.network_s
    assert predict(job, alone, coefficients=far) == predict(job, alone)


JOB_ON_T4 = replace(JOB, measurements=[replace(MEASURED, instance_type=None, gpu_model="T4")])


def test_a_gpu_is_enough_of_a_machine() -> None:
    named = Measurement("g4dn.xlarge", placement=(1,), batch_per_gpu=32, step_s=0.2, exposed_comm_s=0.0)
    target = Target("p3.2xlarge", batch_per_gpu=32)
    assert predict(JOB_ON_T4, target) == predict(replace(JOB, measurements=[named]), target)


def test_of_a_machine_that_is_not_known_one_line_says_what_cannot_be_predicted() -> None:
    nowhere = replace(JOB, measurements=[Measurement(placement=(1,), batch_per_gpu=32, step_s=0.2)])
    with pytest.raises(
        PredictionError, match=r"no step measured on a GPU and no FLOPs or operators.*gpu_model"
    ) as caught:
        Predictor(nowhere)
    assert "\n" not in str(caught.value)
    estimate = predict(replace(nowhere, flops_per_sample=24e9), Target("g4dn.xlarge", batch_per_gpu=32))
    assert any("no GPU was measured" in sentence for sentence in estimate.basis)
    on_a_gpu = predict(replace(JOB_ON_T4, flops_per_sample=24e9), Target("g4dn.xlarge", batch_per_gpu=32))
    assert not any("no GPU was measured" in sentence for sentence in on_a_gpu.basis)
