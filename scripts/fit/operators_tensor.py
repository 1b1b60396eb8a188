"""Products on tensor cores: the fit to XLA's tables, and the levels that published large products show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from recommender.compute.kernel_time import Array, ProductCoefficients, Rates, Sizes, product_seconds

Fit = dict[str, Any]

CUDA_ENERGY = {
    3.0: 2.5, 5.0: 1.5, 6.0: 1.0, 6.1: 1.0, 7.0: 1.0, 7.5: 1.0, 8.0: 0.63, 8.6: 0.65, 8.9: 0.34, 9.0: 0.34,
    10.0: 0.3, 12.0: 0.3,
}  # fmt: skip
"""By process: 28, 16 and 12 nm, TSMC 7, Samsung 8, TSMC 5 and 4. P4, T4 and V100 reach 54 to 66 GFLOP/J in fp32 where
power binds, an RTX 3090 at least 70, an RTX 4090 at least 122, an RTX PRO 6000 at 300 W 182 (large_products.csv)."""
TENSOR_ENERGY = {
    3.0: 1.0, 5.0: 1.0, 6.0: 1.0, 6.1: 1.0, 7.0: 1.0, 7.5: 1.0, 8.0: 0.33, 8.6: 0.7, 8.9: 0.5, 9.0: 0.29, 10.0: 0.2,
    12.0: 0.45,
}  # fmt: skip
"""The same on tensor cores: T4 and V100S reach 345 GFLOP/J, A100 PCIe 1,010, H100 1,140, B200 1,700, an RTX PRO 6000 at
300 W 760."""
TYPE_ENERGY = {"tf32": 1.8, "fp8": 0.55}
"""As in `recommender.compute.gpu_peaks`."""
LARGE = Path(__file__).with_name("large_products.csv")
_SIDE = 8192
_POWER_BINDS = 1.3
_SCALE = 0.15
_ROWS = 400
TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64))
_TILE_OF = (0, 0, 1, 2, 2, 3)
_ELEMENT_BYTES = {"tf32": 4, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

DEVICES = {
    # TFLOP/s by type, GB/s, SMs, W, energy. Stated by the vendors: H100 SXM; Rubin (4 and 2 PFLOP/s, 22 TB/s, 2026);
    # MI300X; MI350 series. CDNA 4 has no TF32; the library emulates it.
    "sm_90": ({"bf16": 989.4, "tf32": 494.7}, 3350.0, 132.0, 700.0, 0.29),
    "sm_107": ({"bf16": 4000.0, "tf32": 2000.0}, 22000.0, 224.0, 1800.0, 0.13),
    "gfx942": ({"bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp8": 2614.9}, 5300.0, 304.0, 750.0, 0.35),
    "gfx950": ({"bf16": 2300.0, "fp16": 2300.0, "fp8": 4600.0}, 8000.0, 256.0, 1400.0, 0.2),
}
_TYPES = {"bf16": "bf16", "f16": "fp16", "f32": "tf32"}


def tensor_groups(rows: pd.DataFrame, devices: Collection[str]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The rows by device and type, where the device computes that type and reaches no more than its peak."""
    for device in devices:
        mine = rows[rows["device"] == device]
        types = mine["a"].map(lambda name: "fp8" if name.startswith("f8") else _TYPES[name])
        for dtype in DEVICES[device][0]:
            yield device, dtype, mine[types == dtype]


def tensor_rates(device: str, dtype: str) -> Rates:
    """What a device states."""
    peaks, gb_s, sms, watts, energy = DEVICES[device]
    return Rates(peaks[dtype] * 1e12, gb_s * 1e9, sms, watts, energy * TYPE_ENERGY.get(dtype, 1.0))


def tensor_sizes(rows: pd.DataFrame, dtype: str) -> Sizes:
    """Operands of the type and a result of its type, but for fp8, whose result is bf16."""
    b, m, n, k = (rows[name].to_numpy(float) for name in "bmnk")
    element = _ELEMENT_BYTES[dtype]
    return Sizes(b, m, n, k, b * (element * (m * k + k * n) + max(element, 2) * m * n))


def tensor_coefficients(values: Array) -> Fit:
    """Eleven logarithms as `ProductCoefficients`."""
    e = np.exp(values).tolist()
    return {
        "tiles": [[m, n, min(e[_TILE_OF[i]], 1.0)] for i, (m, n) in enumerate(TILES)],
        "wave": min(e[4], 1.0),
        "lead_k": e[5],
        "memory_share": e[6],
        "gflop_per_joule": e[7],
        "batched": 1.0,
        "norm": e[8],
        "start_s": e[9],
        "sm_gb_s": e[10],
    }


def products_of(fitted: Fit) -> ProductCoefficients:
    return ProductCoefficients(**{**fitted, "tiles": tuple(tuple(tile) for tile in fitted["tiles"])})


def fit_tensor(rows: pd.DataFrame, devices: Collection[str]) -> Fit:
    """Products on tensor cores."""
    groups = [
        (
            tensor_rates(device, dtype),
            tensor_sizes(chosen, dtype),
            chosen["latency_us"].to_numpy(float) * 1e-6,
        )
        for device, dtype, group in tensor_groups(rows, devices)
        for chosen in [group.sample(min(len(group), _ROWS), random_state=0)]
    ]
    start = np.log([0.9, 0.7, 0.6, 0.4, 0.7, 150, 0.85, 345, 4, 4e-6, 55])
    width = np.array([0.1, 0.1, 0.15, 0.2, 0.3, 0.4, 0.1, 0.1, 0.3, 0.3, 0.2])

    def residuals(values: Array) -> Array:
        products = products_of(tensor_coefficients(values[: len(start)]))
        found = [(values[: len(start)] - start) / width, values[len(start) :] / _SCALE]
        for (rates, sizes, seconds), level in zip(groups, values[len(start) :], strict=True):
            mine = replace(rates, flops_s=rates.flops_s * float(np.exp(level)))
            off = np.log(product_seconds(sizes, mine, products) / seconds) / _SCALE
            found.append(off * np.sqrt(60 / len(off)))
        return np.concatenate(found)

    best = least_squares(residuals, np.concatenate([start, np.zeros(len(groups))]), loss="soft_l1", max_nfev=40).x
    return tensor_coefficients(best[: len(start)])


def level_of_large_products(cuda: Fit, tensor: Fit) -> dict[tuple[float, bool], float]:
    """What published large products reach beside the fitted form, by capability and whether on tensor cores.

    Where the form says that power binds by much, the product says nothing of the level and is passed over.
    """
    found: dict[tuple[float, bool], list[float]] = {}
    for row in pd.read_csv(LARGE).to_dict("records"):
        on_tensor = row["dtype"] != "fp32"
        capability = max(each for each in CUDA_ENERGY if each <= row["capability"])
        energy = (TENSOR_ENERGY if on_tensor else CUDA_ENERGY)[capability] * TYPE_ENERGY.get(row["dtype"], 1.0)
        rates = Rates(row["peak_tflops"] * 1e12, 1e12, row["sms"], row["watts"], energy)
        side = np.array([float(_SIDE)])
        sizes = Sizes(np.ones(1), side, side, side, np.zeros(1))
        fitted = products_of(tensor if on_tensor else cuda)
        unlimited = product_seconds(sizes, replace(rates, watts=1e9), fitted)[0]
        if product_seconds(sizes, rates, fitted)[0] > _POWER_BINDS * unlimited:
            continue
        reached = row["tflops"] * 1e12 * float(unlimited) / (2.0 * _SIDE**3)
        found.setdefault((capability, on_tensor), []).append(reached)
    return {key: float(np.median(values)) for key, values in found.items()}
