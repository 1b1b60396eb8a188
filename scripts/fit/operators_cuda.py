"""Products on CUDA cores in fp32: the fit to the operators, and what every generation of GPUs has of its own.

Every GPU has levels of its own (its generation's), so that tiles, waves and memory are learned from shapes and not from
differences between GPUs; the levels are drawn to one where little is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ddlprof.recommender.compute.gpu_peaks import GpuPeaks
from ddlprof.recommender.compute.kernel_time import Array, CudaCoreSpeeds, ProductCoefficients, Sizes, product_seconds
from scripts.fit.operators_tensor import LARGE, Fit, TensorLevel, level_of

CUDA_ENERGY = {
    3.0: 2.5, 5.0: 1.5, 6.0: 1.0, 6.1: 1.0, 7.0: 1.0, 7.5: 1.0, 8.0: 0.63, 8.6: 0.65, 8.9: 0.34, 9.0: 0.34,
    10.0: 0.3, 12.0: 0.3,
}  # fmt: skip
"""By process: 28, 16 and 12 nm, TSMC 7, Samsung 8, TSMC 5 and 4. P4, T4 and V100 reach 54 to 66 GFLOP/J in fp32 where
power binds, an RTX 3090 at least 70, an RTX 4090 at least 122, an RTX PRO 6000 at 300 W 182 (large_products.csv)."""
LEAD_S = 15e-6
"""What a measured call holds besides its kernel, at least (12 to 32 us by GPU and host): taken off or added."""
LEAST_US = 120.0
"""Shorter products and convolutions say more about the host than about the GPU."""
SHAPES = ((128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (32, 32))
"""Rows by columns of the tiles of fp32 kernels, as the source recorded them."""
_EFFICIENCY_OF_SHAPE = (0, 1, 1, 2, 3, 3, 4)
_START = (0.95, 0.93, 0.7, 0.7, 0.5, 0.63, 18.0, 0.54, 58.0, 1.0, 4.0)
_WIDTH = np.array([0.06, 0.06, 0.3, 0.3, 0.4, 0.5, 0.7, 0.3, 0.1, 0.1, 0.5])
"""How far from the start the logarithms go easily. The best kernels (V100's, and P100's batched ones) reach 93 to 97 %
of the peak where power does not bind."""
_LEVEL_WIDTH = np.array([[0.15], [0.15], [0.25]])
BATCHED = {6: ((64, 128),), 7: (), 8: ((128, 128),)}
"""The tiles of batched fp32 products by the first digit of the capability, as recorded: cuBLAS takes 128 columns by 64
rows for nearly all of them on Pascal, 128 x 128 on Ampere, and chooses by the shape on Volta and Turing."""
_LIKE = {12.0: 8.9}
"""Capabilities whose large products power bound, and whose SMs are those of another."""
_SIDE = 8192
_POWER_BINDS = 1.3
_GPU_ROWS, _LARGE_ROWS = 30.0, 3.0
"""How much the rows of a GPU weigh together, and how much one published large product does."""


class Level(NamedTuple):
    """What one capability has of its own."""

    cuda: float
    batched: float
    energy: float


def cuda_coefficients(values: Array) -> Fit:
    """Eleven logarithms as `ProductCoefficients`."""
    e = np.exp(values).tolist()
    tiles = [[m, n, min(e[_EFFICIENCY_OF_SHAPE[i]], 1.0)] for i, (m, n) in enumerate(SHAPES)]
    rest = {"wave": min(e[5], 1.0), "lead_k": e[6], "memory_share": e[7], "gflop_per_joule": e[8], "batched": e[9]}
    return {"tiles": tiles, **rest, "norm": e[10], "start_s": 3e-6, "sm_gb_s": 55.0}


def cuda_rates(machine: GpuPeaks, level: Level, tiles_of: Mapping[int, Any]) -> CudaCoreSpeeds:
    """Rates of fp32 on CUDA cores."""
    tiles = tiles_of.get(min(int(machine.capability), 8), ())
    flops_s, bandwidth = machine.fp32_flops_s * level.cuda, machine.bandwidth_b_s
    return CudaCoreSpeeds(flops_s, bandwidth, machine.sms, machine.watts, level.energy, level.batched, tiles)


def sample(rows: pd.DataFrame, by: list[str], most: int) -> pd.DataFrame:
    """At most so many rows of each group."""
    parts: list[pd.DataFrame] = [group.sample(min(len(group), most), random_state=0) for _, group in rows.groupby(by)]
    found: pd.DataFrame = pd.concat(parts)
    return found


def fit_cuda(rows: pd.DataFrame, machines: Mapping[str, GpuPeaks]) -> tuple[Fit, dict[float, Level]]:
    """Products in fp32, and the levels of each measured capability."""
    groups = _groups(rows)
    weights = [_weights(group) for group in groups.values()]
    sizes = [_sizes(group) for group in groups.values()]
    seconds = [group["latency_us"].to_numpy(float) * 1e-6 for group in groups.values()]
    mine = [machines[gpu] for gpu in groups]
    usual = np.log([[1.0, 1.0, CUDA_ENERGY[machine.capability]] for machine in mine]).T
    large = _large_products([machine.capability for machine in mine])
    start = np.log(_START)

    def residuals(values: Array) -> Array:
        products = products_of(cuda_coefficients(values[: len(start)]))
        free = values[len(start) :].reshape(usual.shape)
        found = [(values[: len(start)] - start) / _WIDTH, (free / _LEVEL_WIDTH).ravel()]
        levels = [Level(*each) for each in np.exp(free + usual).T.tolist()]
        for machine, level, size, second, weight in zip(mine, levels, sizes, seconds, weights, strict=True):
            rates = cuda_rates(machine, level, BATCHED)
            off = np.log((product_seconds(size, rates, products) + LEAD_S) / second) / _LEVEL_WIDTH[0]
            found.append(off * weight)
        for position, stated, size, known_s in large:
            level = levels[position]
            rates = replace(stated, flops_s=stated.flops_s * level.cuda, energy=level.energy)
            off = np.log(product_seconds(size, rates, products) / known_s) / _LEVEL_WIDTH[0]
            found.append(off * np.sqrt(_LARGE_ROWS))
        return np.concatenate(found)

    best = least_squares(residuals, np.concatenate([start, np.zeros(usual.size)]), loss="soft_l1", max_nfev=30).x
    levels = np.exp(best[len(start) :].reshape(usual.shape) + usual).T.tolist()
    by_capability = {machine.capability: Level(*each) for machine, each in zip(mine, levels, strict=True)}
    return cuda_coefficients(best[: len(start)]), by_capability


def products_of(fitted: Fit) -> ProductCoefficients:
    """As the form takes them."""
    return ProductCoefficients(**{**fitted, "tiles": tuple(tuple(tile) for tile in fitted["tiles"])})


def memory_of(capability: float, memory: Mapping[float, float]) -> float:
    """What elementwise operators reach beside the kind of memory: as measured, and newer ones as the newest."""
    return memory.get(capability, memory[max(memory)] if capability > max(memory) else 1.0)


def generations(
    cuda: Fit, tensor: Mapping[float, TensorLevel], levels: Mapping[float, Level], memory: Mapping[float, float]
) -> list[Fit]:
    """One row for each capability: as fitted; newer ones as published large products say, and for the rest as the
    newest one that was measured; others as the mean of those measured, with two more at one."""
    large = _level_of_large_products(cuda)
    newest = max(levels)
    logs = np.log([[level.cuda, level.batched] for level in levels.values()])
    usual, usual_batched = np.exp(np.concatenate([logs, np.zeros((2, 2))]).mean(axis=0)).tolist()
    found: list[Fit] = []
    for capability, energy in CUDA_ENERGY.items():
        level, newer = levels.get(capability), capability > newest
        like = _LIKE.get(capability, capability)
        first = large.get(like, usual) if newer or capability < 6 else usual
        major = max((min(int(each), 8) for each in levels if int(each) <= capability), default=6)
        found.append(
            {
                "capability": capability,
                "cuda": level.cuda if level else first,
                "batched": level.batched if level else levels[newest].batched if newer else usual_batched,
                "tensor": level_of(capability, tensor).level,
                "memory": memory_of(capability, memory),
                "cuda_energy": level.energy if level else energy,
                "tensor_energy": level_of(capability, tensor).energy,
                "batched_tiles": [list(tile) for tile in BATCHED[major]],
            }
        )
    return found


def _groups(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    rows = rows[rows["op"].isin(("linear", "bmm")) & (rows["latency_us"] > LEAST_US)]
    linear = rows["op"] == "linear"  # see the traps
    odd = (rows["gpu_model"] == "P4") & linear & (rows["set"] == "r")
    odd |= (rows["gpu_model"] == "P100-PCIE-16GB") & linear & (rows["k"] > 8192)
    return {str(gpu): group for gpu, group in sample(rows[~odd], ["gpu_model", "op", "set"], 400).groupby("gpu_model")}


def _sizes(rows: pd.DataFrame) -> Sizes:
    b, m, n, k = (rows[name].to_numpy(float) for name in "bmnk")
    return Sizes(b, m, n, k, rows["mbyte"].to_numpy(float) * 1e6)


def _weights(rows: pd.DataFrame) -> Array:
    """Roots of weights: the shapes that models have weigh ten times the random ones."""
    share = rows["set"].map({"m": 10.0, "r": 1.0}) / rows.groupby(["op", "set"])["m"].transform("size")
    found: Array = np.sqrt(_GPU_ROWS * share / share.sum()).to_numpy(float)
    return found


def _large_products(capabilities: list[float]) -> list[tuple[int, CudaCoreSpeeds, Sizes, float]]:
    """Published large products in fp32 of the capabilities: position, rates, size, seconds."""
    found = []
    for row in pd.read_csv(LARGE).to_dict("records"):
        if row["dtype"] == "fp32" and row["capability"] in capabilities:
            side = np.array([8192.0])
            rates = CudaCoreSpeeds(row["peak_tflops"] * 1e12, 1e12, row["sms"], row["watts"], 1.0)
            second = 2 * 8192.0**3 / (row["tflops"] * 1e12)
            found.append(
                (capabilities.index(row["capability"]), rates, Sizes(np.ones(1), side, side, side, np.zeros(1)), second)
            )
    return found


def _level_of_large_products(cuda: Fit) -> dict[float, float]:
    """What published large products in fp32 reach beside the fitted form, by capability.

    Where the form says that power binds by much, the product says nothing of the level and is passed over.
    """
    found: dict[float, list[float]] = {}
    rows = pd.read_csv(LARGE)
    for row in rows[rows["dtype"] == "fp32"].to_dict("records"):
        capability = max(each for each in CUDA_ENERGY if each <= row["capability"])
        rates = CudaCoreSpeeds(row["peak_tflops"] * 1e12, 1e12, row["sms"], row["watts"], CUDA_ENERGY[capability])
        side = np.array([float(_SIDE)])
        sizes, fitted = Sizes(np.ones(1), side, side, side, np.zeros(1)), products_of(cuda)
        unlimited = product_seconds(sizes, replace(rates, watts=1e9), fitted)[0]
        if product_seconds(sizes, rates, fitted)[0] > _POWER_BINDS * unlimited:
            continue
        found.setdefault(capability, []).append(row["tflops"] * 1e12 * float(unlimited) / (2.0 * _SIDE**3))
    return {key: float(np.median(values)) for key, values in found.items()}
