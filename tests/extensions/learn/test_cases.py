"""What a measured job says: residuals to learn from, and predictions as if nothing had been measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddlprof.extensions.learn.cases import cases_of_parts, cases_of_steps, compute_points, fits_of
from ddlprof.recommender import Coefficients, Measurement, Workload
from tests.extensions.learn.teams import GPU, job

SHIPPED = Coefficients.shipped()


def test_the_residual_is_that_of_the_prediction_without_measurements() -> None:
    points = list(compute_points(job(2, factor=1.5), SHIPPED))
    assert [point.cell.subject for point in points] == ["T4 fp32, by flops"] * 2
    assert [point.log_ratio for point in points] == pytest.approx([math.log(1.5)] * 2)


def test_computation_of_which_nobody_told_is_what_predicted_communication_leaves() -> None:
    told = job(3, gpus=4)
    untold = replace(
        told, measurements=[replace(m, compute_s=None, exposed_comm_s=None) for m in told.measurements]
    )  # fmt: skip
    known = {point.features[1]: point.log_ratio for point in compute_points(told, SHIPPED)}
    left = list(compute_points(untold, SHIPPED))
    assert left
    for point in left:  # of twice the predicted communication one half stays in the computation
        assert known[point.features[1]] <= point.log_ratio < known[point.features[1]] + 0.5
    assert fits_of(untold, SHIPPED) == {}
    assert list(fits_of(told, SHIPPED)) == [("T4", "pcie")]


def test_steps_are_judged_without_what_was_measured() -> None:
    cases = list(cases_of_steps(job(1, factor=2.0), SHIPPED))
    assert [case.error for case in cases] == pytest.approx([0.5, 0.5])
    assert all(case.sd > 0 for case in cases)


def test_communication_is_judged_by_who_knows_the_computation() -> None:
    cases = list(cases_of_parts(job(1, factor=2.0, gpus=4), SHIPPED))
    of = {case.of for case in cases if case.what == "communication"}
    assert of == {"T4, pcie"}
    assert all(case.error < 0.3 for case in cases if case.what == "communication")


def test_a_job_without_counts_or_gpus_has_no_cases() -> None:
    unknown = Workload("unknown", measurements=[Measurement(GPU, placement=(1,), batch_per_gpu=1, step_s=1.0)])
    on_cpu = Workload(
        "cpu", flops_per_sample=1e9, measurements=[Measurement(placement=(1,), batch_per_gpu=1, step_s=1)]
    )
    for workload in (unknown, on_cpu):
        assert [*compute_points(workload, SHIPPED), *cases_of_steps(workload, SHIPPED)] == []
