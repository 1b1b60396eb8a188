"""The file of the coefficients: readable, complete, and what it says of a few operators."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from ddlprof import instance_catalog
from ddlprof.base.typed import decode
from ddlprof.model.operators import Operator
from ddlprof.recommender.compute.operator_coefficients import OperatorCoefficients, generation_of, shipped
from ddlprof.recommender.compute.operator_time import OperatorModel

CATALOG = instance_catalog.load()
TEXT = files("ddlprof.recommender").joinpath("compute/operators.json").read_text(encoding="utf-8")


def _product(dtype: str, element: int) -> Operator:
    moved = element * 3 * 4096.0**2
    return Operator("product", "forward", "mm", dtype, (1, 4096, 4096, 4096), 2 * 4096.0**3, moved, 1, 1)


WORK = (
    _product("fp32", 4),
    _product("fp16", 2),
    Operator("elementwise", "forward", "add", "fp32", (2**26,), 0, 12 * 2.0**26, 1, 1),
    Operator("softmax", "forward", "_softmax", "fp32", (2**16, 1024), 0, 8 * 2.0**26, 1, 1),
    Operator("convolution", "forward", "convolution", "fp32", (32, 784, 128, 1152, 1, 9), 2 * 32 * 784 * 128 * 1152.0,
             4 * (2 * 32 * 784 * 128 + 128 * 1152.0), 1, 1),
)  # fmt: skip


def test_the_file_is_json_with_sources_date_and_errors() -> None:
    data = json.loads(TEXT)
    assert data["sources"]
    assert data["as_of"] >= "2026-11-22"
    assert data["errors"]["columns"][:2] == ["left_out", "cases"]
    assert [row[0] for row in data["errors"]["rows"]][-1] == "all"
    assert decode(OperatorCoefficients, data) == shipped()


def test_its_shares_are_shares() -> None:
    fitted = shipped()
    assert all(0 < reached <= 1 for _, _, reached in fitted.cuda.tiles)
    assert all(0 <= wave <= 1 for wave in (fitted.cuda.wave, *fitted.tensor.wave))
    shares = (fitted.tensor.efficiency, fitted.tensor.l2_share, fitted.tensor.read, fitted.tensor.write)
    assert all(0 < share <= 1 for share in shares)
    assert all(0 < share <= 1 for share in fitted.streams.memory.values())
    capabilities = [generation.capability for generation in fitted.generations]
    assert capabilities == sorted(capabilities)


@pytest.mark.parametrize(("capability", "taken"), [(6.0, 6.0), (7.2, 7.0), (9.9, 9.0), (13.0, 12.0), (2.0, 3.0)])
def test_a_generation_nobody_measured_is_the_newest_older_one(capability: float, taken: float) -> None:
    assert generation_of(capability, shipped().generations).capability == taken


@pytest.mark.parametrize(
    ("gpu", "microseconds"),
    [
        ("T4", (37351.6, 5708.8, 3398.1, 2504.3, 1826.7)),
        ("V100-PCIE-32GB", (10720.7, 1577.5, 986.1, 727.1, 557.5)),
        ("A100-PCIE-40GB", (8805.2, 659.6, 591.5, 436.3, 437.4)),
        ("H100-SXM5-80GB", (2815.4, 178.8, 275.6, 203.6, 150.6)),
    ],
)
def test_a_few_operators(gpu: str, microseconds: tuple[float, ...]) -> None:
    seconds = OperatorModel.shipped().operators(WORK, CATALOG.gpu(gpu))
    assert [1e6 * second for second in seconds] == pytest.approx(microseconds, rel=0.01)
