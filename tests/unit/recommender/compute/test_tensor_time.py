"""Products on tensor cores: more work never takes less, and what the data sheet says carries over as it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlprof import instance_catalog
from ddlprof.recommender.compute.gpu_peaks import peaks_of
from ddlprof.recommender.compute.kernel_time import Array, Sizes
from ddlprof.recommender.compute.operator_coefficients import shipped
from ddlprof.recommender.compute.tensor_time import TensorRates, power_flops_s, tensor_product_seconds

CATALOG = instance_catalog.load()
FITTED = shipped().tensor
NAMES = ("T4", "V100-SXM2-16GB", "A100-SXM4-80GB", "A10", "L40S", "H100-SXM5-80GB", "B200")


def rates_of(name: str) -> TensorRates:
    machine = peaks_of(CATALOG.gpu(name))
    assert machine.tensor is not None
    return TensorRates(machine.tensor, 1.0, 2.0, machine.bandwidth_b_s, machine.watts)


def seconds(rates: TensorRates, m: float, n: float, k: float, b: float = 1.0, convolution: bool = False) -> float:
    sizes = Sizes(*(np.array([float(size)]) for size in (b, m, n, k, 2 * b * (m * k + k * n + m * n))))
    return float(tensor_product_seconds(sizes, rates, FITTED, convolution)[0])


@pytest.mark.parametrize("name", NAMES)
def test_more_work_never_takes_less(name: str) -> None:
    rates = rates_of(name)
    sides = (1, 16, 60, 64, 65, 100, 128, 129, 512, 1000, 1024, 1025, 2048, 4096, 10_000)
    for make in (
        lambda side: seconds(rates, side, 1024, 1024),
        lambda side: seconds(rates, 1024, side, 512),
        lambda side: seconds(rates, 512, 64, 512, b=side),
    ):
        found = np.array([make(side) for side in sides])
        assert (found[1:] >= found[:-1] * (1 - 1e-9)).all()


def test_the_clock_gives_way_to_power() -> None:
    def clock(watts: float) -> float:
        rates = replace(rates_of("T4"), watts=watts)
        return power_flops_s(rates, FITTED) / rates.cores.sms / rates.cores.width

    assert clock(40) == pytest.approx(clock(20) * 2)
    assert clock(400) < clock(200) * 2**0.5
    # A card whose 16-bit rate is halved does the same for its watts.
    whole = rates_of("L40S")
    half = replace(whole, cores=replace(whole.cores, width=whole.cores.width / 2, clock_hz=whole.cores.clock_hz))
    assert power_flops_s(half, FITTED) > 0.6 * power_flops_s(whole, FITTED)


def test_an_empty_product_is_finite() -> None:
    none: Array = np.zeros(0)
    assert len(tensor_product_seconds(Sizes(none, none, none, none, none), rates_of("B200"), FITTED)) == 0
    assert 0 < seconds(rates_of("B200"), 1, 1, 1) < 1e-4


def test_older_gpus_have_none() -> None:
    assert peaks_of(CATALOG.gpu("P100-PCIE-16GB")).tensor is None
