"""Fits the efficiencies of operators to published measurements, without the GPUs that are left out.

Every GPU has a level of its own (its generation's), so that tiles, waves and memory are learned from shapes and not
from differences between GPUs; the levels are drawn to one where little is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from instance_catalog import Catalog, load
from recommender.compute.operators.convolution import ConvolutionCoefficients, convolution_seconds
from recommender.compute.operators.machine import Machine, machine_of
from recommender.compute.operators.table import Array, OperatorTable
from scripts.fit.operator_data import ELEMENTWISE, operators_of
from scripts.fit.operators_cuda import LEAD_S, LEAST_US, Level, cuda_rates, fit_cuda, generations, sample
from scripts.fit.operators_tensor import fit_tensor, products_of

Fit = dict[str, Any]

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
    machines = {gpu: machine_of(catalog.gpu(gpu)) for gpu in rows["gpu_model"].unique()}
    cuda, levels = fit_cuda(rows, machines)
    streams, memory = _fit_streams(rows, machines)
    tensor = fit_tensor(pd.read_csv(folder / "matmul_tensor_cores.csv"), ("sm_90", "sm_107"))
    measured = [machines[gpu].capability for gpu in machines]
    found: Fit = {
        "cuda": cuda,
        "tensor": tensor,
        "generations": generations(cuda, tensor, levels, memory),
        "streams": streams,
        "measured": [min(measured), max(measured)],
    }
    found |= STATED
    found["convolution"] = _fit_convolution(rows, machines, found)
    return found


def _fit_streams(rows: pd.DataFrame, machines: Mapping[str, Machine]) -> tuple[Fit, dict[float, float]]:
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
        "within": 0.09,
        "assumed": 0.35,
        "unfitted": 0.7,
        "host": 0.4,
        "generation": 0.12,
        "precision": 0.12,
    },
}
"""Nobody measured these in the data. The deviations follow from the errors on GPUs and models left out, see
`operators_errors.py`."""
MEMORY = {"hbm": 0.9, "gddr": 0.78}
"""What STREAM-like kernels reach of the data sheet, as published for many GPUs: weighs as much as one measured GPU."""
ASSUMED_KINDS = {"reduction": 0.85, "embedding": 0.55, "pooling": 0.7, "copy": 0.85, "optimizer": 0.95, "other": 0.5}
"""Nobody measured these in the data: stated."""
ASSUMED_BACKWARD = {"embedding": 0.3, "pooling": 0.5}


def _fit_convolution(rows: pd.DataFrame, machines: Mapping[str, Machine], found: Fit) -> Fit:
    """Convolutions beside products of their sizes, on the levels of products."""
    rows = rows[(rows["op"] == "conv") & (rows["latency_us"] > LEAST_US)]
    products = products_of(found["cuda"])
    levels = {
        each["capability"]: Level(each["cuda"], each["batched"], each["cuda_energy"]) for each in found["generations"]
    }
    groups = [
        (
            OperatorTable.of(operators_of(group)),
            cuda_rates(machines[str(gpu)], levels[machines[str(gpu)].capability], {}),
            group["latency_us"].to_numpy(float) * 1e-6 - LEAD_S,
        )
        for gpu, group in sample(rows, ["gpu_model"], 1000).groupby("gpu_model")
    ]
    start, width = np.log([0.9, 0.5, 2.0]), np.array([0.5, 0.4, 0.5])

    def residuals(values: Array) -> Array:
        out = [(values - start) / width]
        for table, rates, seconds in groups:
            off = np.log(convolution_seconds(table, rates, products, convolution_of(values), False) / seconds) / _SCALE
            out.append(off * np.sqrt(60 / len(off)))
        return np.concatenate(out)

    best = least_squares(residuals, start, loss="soft_l1", max_nfev=30).x if groups else start
    return vars(convolution_of(best))


def convolution_of(values: Array) -> ConvolutionCoefficients:
    """Three logarithms as `ConvolutionCoefficients`; depthwise convolutions are stated."""
    product, winograd, memory = np.exp(values).tolist()
    return ConvolutionCoefficients(product, winograd, memory, 0.15, 0.5)
