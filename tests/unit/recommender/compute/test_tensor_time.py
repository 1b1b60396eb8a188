"""Products on tensor cores: more work never takes less, and what the data sheet says carries over as it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlprof import instance_catalog
from ddlprof.recommender.compute.gpu_peaks import peaks_of
from ddlprof.recommender.compute.kernel_time import Array, Sizes
from ddlprof.recommender.compute.operator_coefficients import shipped
from ddlprof.recommender.compute.tensor_time import TensorCores, TensorRates, power_flops_s, tensor_product_seconds

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


@pytest.mark.parametrize("name", NAMES)
def test_no_product_is_faster_than_the_data_sheet(name: str) -> None:
    rates = rates_of(name)
    for side in (256, 1024, 4096, 16384):
        assert seconds(rates, side, side, side) > 2 * side**3 / rates.flops_s
        assert seconds(rates, side, side, side, convolution=True) >= seconds(rates, side, side, side)


def test_a_better_data_sheet_is_faster() -> None:
    rates = rates_of("H100-SXM5-80GB")
    cores = rates.cores
    large, thin, small = (8192, 8192, 8192), (1, 16384, 16384), (2048, 2048, 64)
    more_power = replace(rates, watts=2 * rates.watts)
    faster_memory = replace(rates, bandwidth_b_s=2 * rates.bandwidth_b_s)
    more_cache = replace(rates, cores=replace(cores, l2_bytes=4 * cores.l2_bytes))
    more_sms = replace(more_power, cores=replace(cores, sms=2 * cores.sms))
    assert seconds(more_power, *large) < seconds(rates, *large)
    assert seconds(faster_memory, *thin) < 0.8 * seconds(rates, *thin)
    assert seconds(more_cache, *small) <= seconds(rates, *small)
    assert seconds(more_sms, *large) < 0.6 * seconds(rates, *large)


def test_what_fits_in_the_cache_does_not_wait_for_memory() -> None:
    rates = rates_of("L40S")
    slower = replace(rates, bandwidth_b_s=rates.bandwidth_b_s / 4)
    assert seconds(slower, 2048, 2048, 256) < 1.05 * seconds(rates, 2048, 2048, 256)
    assert seconds(slower, 65536, 16384, 64) > 3 * seconds(rates, 65536, 16384, 64)


def test_a_last_wave_of_few_tiles_costs() -> None:
    """96 tiles of 128 x 256 are one wave of an A100 of 108 SMs, 112 are two; it was measured to take twice as long."""
    rates = rates_of("A100-SXM4-80GB")
    assert seconds(rates, 769, 4096, 4096) > 1.15 * seconds(rates, 768, 4096, 4096)


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


@pytest.mark.parametrize(
    ("name", "width", "shares"),
    [
        ("V100-SXM2-16GB", 1024, False),
        ("RTX-2080Ti", 512, False),
        ("T4", 1024, False),
        ("A100-SXM4-40GB", 2048, False),
        ("A30", 2048, False),
        ("RTX-3090", 512, False),
        ("L4", 1024, False),
        ("L40S", 1024, False),
        ("H100-SXM5-80GB", 4096, True),
        ("H100-PCIE-80GB", 4096, True),
        ("B200", 8192, True),
        ("GB200", 8192, True),
        ("RTX-PRO-6000-Blackwell-SE", 1024, False),
    ],
)
def test_sms_by_their_data_sheet(name: str, width: float, shares: bool) -> None:
    cores = peaks_of(CATALOG.gpu(name)).tensor
    assert isinstance(cores, TensorCores)
    assert (cores.width, cores.shares_loads) == (width, shares)
    assert 1.2e9 < cores.clock_hz < 2.7e9
    assert cores.l2_bytes >= 3e6


def test_older_gpus_have_none() -> None:
    assert peaks_of(CATALOG.gpu("P100-PCIE-16GB")).tensor is None
