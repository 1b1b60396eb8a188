"""Fits the efficiencies of operators to published measurements, without the GPUs that are left out.

Every GPU has a level of its own (its generation's), so that tiles, waves and memory are learned from shapes and not
from differences between GPUs; the levels are drawn to one where little is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ddlprof.instance_catalog import Catalog, load
from ddlprof.recommender.compute.gpu_peaks import GpuPeaks, peaks_of
from ddlprof.recommender.compute.kernel_time import (
    Array,
    OperatorTable,
    fused_seconds,
    implicit_seconds,
    large_products,
    split_seconds,
)
from ddlprof.recommender.compute.operator_coefficients import shipped
from scripts.fit.operator_data import ELEMENTWISE, operators_of
from scripts.fit.operators_cuda import (
    LEAD_S,
    LEAST_US,
    Level,
    cuda_rates,
    fit_cuda,
    generations,
    memory_of,
    products_of,
    sample,
)
from scripts.fit.operators_tensor import (
    Fit,
    Measured,
    TensorLevel,
    fit_tensor,
    measured_products,
    read_products,
    sampled,
)
from scripts.fit.operators_tensor import large_products as published_large_products

NO_LIMIT_W = 1e4
"""The convolutions were measured on zeros, which draw so little power that it does not bind."""
_LEAST_STREAM_US = 200.0
"""Shorter calls say more about the host than about the GPU."""
_CHIPS = {"A100-PCIE-80GB": "A100-PCIE-40GB"}
_SCALE = 0.15


def chip(gpu: str) -> str:
    """GPUs of one chip are left out together."""
    return _CHIPS.get(gpu, gpu)


def fit(folder: Path, without: Collection[str] = (), catalog: Catalog | None = None) -> Fit:
    """The content of `operators.json` without its errors. `without`: chips whose rows are not used."""
    catalog = catalog or load()
    rows = pd.read_csv(folder / "operators.csv")
    rows = rows[~rows["gpu_model"].map(chip).isin(set(without))]
    machines = {gpu: peaks_of(catalog.gpu(gpu)) for gpu in rows["gpu_model"].unique()}
    cuda, levels = fit_cuda(rows, machines)
    streams, memory = _fit_streams(rows, machines)
    tensor, tensor_levels = _tensor(folder)
    measured = [machines[gpu].capability for gpu in machines]
    found: Fit = {
        "cuda": cuda,
        "tensor": tensor,
        "generations": generations(cuda, tensor_levels, levels, memory),
        "streams": streams,
        "measured": sorted(set(measured)),
        "tensor_measured": sorted({group.capability for group in products(folder)}),
    }
    found |= STATED
    found["convolution"] = _fit_convolution(rows, machines, found)
    found["convolution_16"] = asdict(shipped().convolution_16)  # by scripts/fit/convolutions.py
    return found


def _fit_streams(rows: pd.DataFrame, machines: Mapping[str, GpuPeaks]) -> tuple[Fit, dict[float, float]]:
    """What memory binds, and how each capability differs from its kind of memory."""
    rows = rows[(rows["latency_us"] > _LEAST_STREAM_US) & ~rows["op"].isin(("linear", "bmm", "conv"))]
    bandwidth = rows["gpu_model"].map({gpu: machine.bandwidth_b_s for gpu, machine in machines.items()})
    share = rows["mbyte"] * 1e6 / (rows["latency_us"] * 1e-6 - LEAD_S) / bandwidth
    plain = share[rows["op"].isin(ELEMENTWISE)].groupby(rows["gpu_model"]).median()
    kinds = {gpu: machines[gpu].memory for gpu in plain.index}
    memory = {
        kind: float(np.mean([prior, *(plain[gpu] for gpu in plain.index if kinds[gpu] == kind)]))
        for kind, prior in MEMORY.items()
    }
    beside = share / rows["gpu_model"].map(plain)
    softmax, columns = rows["op"] == "softmax", rows["n"]

    def middle(chosen: pd.Series) -> float:
        return float(beside[chosen].groupby(rows["gpu_model"]).median().mean())

    short = middle(softmax & (columns <= 1024))
    long = [middle(softmax & (columns > 1024) & (columns <= 8192)), middle(softmax & (columns > 8192))]
    fitted = {
        "memory": memory,
        "kinds": {"elementwise": 1.0, "normalization": middle(rows["op"] == "ln"), "softmax": short, **ASSUMED_KINDS},
        "backward": {"normalization": middle(rows["op"] == "ln") * 0.9, "softmax": short, **ASSUMED_BACKWARD},
        "softmax_columns": [[1024, 1.0], [8192, long[0] / short], [1e9, long[1] / short]],
    }
    return fitted, {machines[gpu].capability: float(plain[gpu]) / memory[kinds[gpu]] for gpu in plain.index}


@lru_cache(maxsize=1)
def _tensor(folder: Path) -> tuple[Fit, dict[float, TensorLevel]]:
    """Products on tensor cores, of all GPUs: those left out of the fit in fp32 are others."""
    return fit_tensor([*products(folder), *published_large_products()], lambda group: group.capability)


@lru_cache(maxsize=2)
def products(folder: Path, all_rows: bool = False) -> tuple[Measured, ...]:
    """The measured products on tensor cores, in `layouts` beside the folder: those of the fit, or all."""
    catalog, operators = load(), pd.read_csv(folder / "operators.csv")
    streams, memory = _fit_streams(
        operators, {gpu: peaks_of(catalog.gpu(gpu)) for gpu in operators["gpu_model"].unique()}
    )

    def bandwidth_of(machine: GpuPeaks) -> float:
        share = streams["memory"][machine.memory] / streams["memory"]["hbm"]
        return float(machine.bandwidth_b_s * share * memory_of(machine.capability, memory))

    rows = read_products(folder.parent / "layouts")
    return tuple(measured_products(rows if all_rows else sampled(rows), catalog, bandwidth_of))


STATED: Fit = {
    "fused": {
        "attention": {"tensor_forward": 0.6, "tensor_backward": 0.45, "cuda_forward": 0.5, "cuda_backward": 0.35},
        "attention_columns": 32,
        "recurrent_flops": 0.35,
        "recurrent_step_s": 1e-5,
    },
    "host": {"forward_s": 1.5e-5, "backward_s": 1.0e-5, "optimizer_s": 1.5e-5, "kernel_s": 2.0e-6, "compiled": 0.5},
    "deviations": {
        "gpu": 0.19,
        "known_generation": 0.14,
        "within": 0.09,
        "assumed": 0.35,
        "convolution": 0.3,
        "unfitted": 0.7,
        "host": 0.4,
        "generation": 0.12,
        "precision": 0.12,
        "tensor": 0.085,
        "tensor_generation": 0.11,
    },
}
"""Nobody measured these in the data. The deviations follow from the errors on GPUs and models left out, see
`operators_errors.py`."""
MEMORY = {"hbm": 0.9, "gddr": 0.78}
"""What STREAM-like kernels reach of the data sheet, as published for many GPUs: weighs as much as one measured GPU."""
ASSUMED_KINDS = {"reduction": 0.85, "embedding": 0.55, "pooling": 0.7, "copy": 0.85, "optimizer": 0.95, "other": 0.5}
"""Nobody measured these in the data: stated."""
ASSUMED_BACKWARD = {"embedding": 0.3, "pooling": 0.5}


def _fit_convolution(rows: pd.DataFrame, machines: Mapping[str, GpuPeaks], found: Fit) -> Fit:
    """Convolutions beside products of their sizes: every algorithm on the rows that it computed."""
    rows = rows[(rows["op"] == "conv") & (rows["latency_us"] > LEAST_US)]
    coefficients = products_of(found["cuda"])
    levels = {g["capability"]: Level(g["cuda"], g["batched"], g["cuda_energy"]) for g in found["generations"]}
    parts = []
    for gpu, group in sample(rows, ["gpu_model"], 1500).groupby("gpu_model"):
        machine = machines[str(gpu)]
        rates = replace(cuda_rates(machine, levels[machine.capability], {}), watts=NO_LIMIT_W)
        table = OperatorTable.of(operators_of(group))
        large = large_products(rates, coefficients)
        split_s, transforms_s, filters_s = split_seconds(table, large, rates.bandwidth_b_s)
        parts.append(
            group.assign(
                seconds=group["latency_us"] * 1e-6 - LEAD_S,
                implicit_gemm=implicit_seconds(table, large),
                winograd=fused_seconds(table, large),
                split=split_s,
                transforms=transforms_s,
                filters=filters_s,
            )
        )
    rows = pd.concat(parts)

    def speed(algorithm: str) -> float:
        mine = rows[rows["kernel"] == algorithm]
        ratio = np.log(mine[algorithm] / mine["seconds"])
        return float(np.exp(ratio.groupby(mine["gpu_model"]).median().mean()))

    mine = rows[rows["kernel"] == "winograd_nonfused"]
    weights = np.sqrt(60 / mine.groupby("gpu_model")["m"].transform("size"))
    start, width = np.log([0.7, 0.5, 0.3]), np.array([0.4, 0.4, 0.4])

    def residuals(values: Array) -> Array:
        split, transform, filters = np.exp(values)
        expected = mine["split"] / split + mine["transforms"] / transform + mine["filters"] / filters
        off = np.log(expected / mine["seconds"]) * weights / _SCALE
        return np.concatenate([(values - start) / width, off.to_numpy(float)])

    split, transform, filters = np.exp(least_squares(residuals, start, loss="soft_l1").x).tolist()
    speeds = {
        "implicit": speed("implicit_gemm"),
        "fused": speed("winograd"),
        "split": split,
        "transform_memory": transform,
        "filter_memory": filters,
    }
    # The fastest of three estimates is shorter than any of them is on the average.
    by_split = rows["split"] / split + rows["transforms"] / transform + rows["filters"] / filters
    each = [rows["implicit_gemm"] / speeds["implicit"], rows["winograd"] / speeds["fused"], by_split]
    off = np.log(np.minimum.reduce(each) / rows["seconds"]).groupby(rows["gpu_model"]).median().mean()
    slower = float(np.exp(off))
    return {**{name: value * slower for name, value in speeds.items()}, "direct_flops": 0.15, "direct_memory": 0.5}
