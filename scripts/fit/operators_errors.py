"""Prints how far the seconds of operators and of whole models are off, for docs/accuracy.md.

python -m scripts.fit.operators_errors --data ../shared/data/operators

A GPU is left out with everything measured on its chip, a device of the tensor-core tables likewise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from ddlprof.base.typed import decode
from ddlprof.instance_catalog import Gpu, load
from ddlprof.recommender.compute.gpu_peaks import peaks_of
from ddlprof.recommender.compute.kernel_time import Array
from ddlprof.recommender.compute.operator_coefficients import OperatorCoefficients
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.compute.tensor_time import TensorCoefficients
from ddlprof.recommender.estimate import Z80
from scripts.fit.operator_data import ModelCase, operators_of, read_models
from scripts.fit.operators_cuda import LEAD_S
from scripts.fit.operators_fit import NO_LIMIT_W, STATED, chip, fit, products
from scripts.fit.operators_tensor import (
    LEAST_ROWS,
    Fit,
    Measured,
    TensorLevel,
    fit_tensor,
    large_products,
    level_of,
    without,
)
from scripts.fit.operators_xla import DEVICES, device_groups, few

GPUS = ("P4", "P100-PCIE-16GB", "V100-PCIE-32GB", "T4", "A100-PCIE-40GB")
_SAME_CHIP = {"sm_90": "H100", "sm_107": "none"}
"""The measured chip of a device of XLA's tables."""
_DATA_SHEET = TensorLevel(1.0, 1.0)
"""The level of a generation that nobody measured."""
_OTHER_OF_AMD = {"gfx942": "gfx950", "gfx950": "gfx942"}
_KIND_OF = {
    "linear": "product",
    "bmm": "batched product",
    "conv": "convolution",
    "ln": "layer norm",
    "softmax": "softmax",
}
_SHORTEST_US = 100.0
"""Shorter operators measure the host."""


@dataclass(frozen=True)
class Predicted:
    """One whole model, its GPU left out."""

    case: ModelCase
    seconds: float
    forward_s: float
    backward_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.seconds / self.case.seconds


@lru_cache(maxsize=8)
def model_without(folder: Path, gpu: str) -> OperatorModel:
    """Fitted without a GPU; an empty name leaves none out."""
    return OperatorModel(decode(OperatorCoefficients, fit(folder, (chip(gpu),) if gpu else ())))


def whole_models(folder: Path, gpus: Iterable[str] = GPUS) -> list[Predicted]:
    """Every whole model whose operators are known, predicted without its GPU."""
    catalog, found = load(), []
    cases = read_models(folder)
    for gpu in gpus:
        model = model_without(folder, gpu)
        for case in cases:
            if case.gpu == gpu:
                estimate = model.step(case.step, catalog.gpu(gpu))
                found.append(Predicted(case, estimate.step_s, estimate.forward_s, estimate.backward_s))
    return found


def with_one_other(predicted: Sequence[Predicted]) -> list[float]:
    """Ratios of predicted to measured once the ratio of one other case on the same GPU is known, for every such pair.

    Another batch of the same model is no other case.
    """
    return [
        mine.ratio / other.ratio
        for mine in predicted
        for other in predicted
        if mine.case.gpu == other.case.gpu and mine.case.model != other.case.model
    ]


def off(ratios: Iterable[float]) -> tuple[float, float]:
    """Mean and median error of ratios of predicted to measured."""
    errors = np.abs(np.array(list(ratios)) - 1)
    return float(errors.mean()), float(np.median(errors))


def operators_by_kind(folder: Path, gpus: Iterable[str] = GPUS) -> pd.DataFrame:
    """Errors of operators by kind and GPU, the GPU left out: the form, a roofline, and a roofline with one efficiency
    for each kind fitted on the other GPUs. Columns kind, gpu, rows, form, roofline, efficiency: mean errors."""
    rows = pd.read_csv(folder / "operators.csv")
    rows = rows[(rows["latency_us"] > _SHORTEST_US) & rows["gpu_model"].isin(tuple(gpus))]
    rows = pd.concat([g.sample(min(len(g), 300), random_state=1) for _, g in rows.groupby(["gpu_model", "op"])])
    rows["kind"] = rows["op"].map(_KIND_OF).fillna("elementwise")
    rows["seconds"] = rows["latency_us"] * 1e-6
    catalog, parts = load(), []
    for gpu, mine in rows.groupby("gpu_model"):
        name = str(gpu)
        machine = peaks_of(catalog.gpu(name))
        least_s = np.maximum(mine["mflop"] * 1e6 / machine.fp32_flops_s, mine["mbyte"] * 1e6 / machine.bandwidth_b_s)
        form_s = _form_s(folder, mine, catalog.gpu(name))
        parts.append(mine.assign(roofline=least_s / mine["seconds"], form=form_s / mine["seconds"]))
    rows = pd.concat(parts)
    found = []
    for (kind, gpu), mine in rows.groupby(["kind", "gpu_model"]):
        others = rows[(rows["kind"] == kind) & (rows["gpu_model"] != gpu)]
        efficiency = float(np.exp(np.log(others["roofline"]).groupby(others["gpu_model"]).median().mean()))
        errors = [off(mine[name] / by)[0] for name, by in (("form", 1.0), ("roofline", 1.0), ("roofline", efficiency))]
        found.append([kind, gpu, len(mine), *errors])
    table: pd.DataFrame = pd.DataFrame(found, columns=["kind", "gpu", "rows", "form", "roofline", "efficiency"])
    return table


def _form_s(folder: Path, rows: pd.DataFrame, gpu: Gpu) -> Array:
    """Seconds of the rows without their GPU. Convolutions were measured on zeros: power does not bind them."""
    model = model_without(folder, gpu.gpu_model)
    found = model.operators(operators_of(rows), gpu)
    zeros = model.operators(operators_of(rows), replace(gpu, tdp_w=NO_LIMIT_W))
    seconds: Array = np.where(rows["op"] == "conv", zeros, found) + LEAD_S
    return seconds


def products_left_out(folder: Path) -> pd.DataFrame:
    """Errors of 16-bit products of at least `LEAST_ROWS` rows, their GPU left out with all published of its chip: mean,
    median, the median ratio, the standard deviation of single products that the interval has, and the share inside."""
    found = []
    for group in products(folder, all_rows=True):
        fitted, levels = _tensor_without(folder, group.name)
        shapes = group.rows(group.sizes.m >= LEAST_ROWS)
        ratios = shapes.ratios(decode(TensorCoefficients, fitted), level_of(group.capability, levels))
        known = group.capability in {each.capability for each in without(products(folder), group.name)}
        sd = STATED["deviations"]["tensor" if known else "tensor_generation"]
        inside = float((np.abs(np.log(ratios)) < Z80 * sd).mean())
        found.append([group.name, len(ratios), *off(ratios), float(np.median(ratios)), sd, inside])
    table: pd.DataFrame = pd.DataFrame(found, columns=["gpu", "rows", "mean", "median", "ratio", "sd", "inside"])
    return table


@lru_cache(maxsize=8)
def _tensor_without(folder: Path, gpu: str) -> tuple[Fit, dict[float, TensorLevel]]:
    groups: list[Measured] = without([*products(folder), *large_products()], gpu)
    return fit_tensor(groups, lambda group: group.capability)


def tensor_products(folder: Path) -> pd.DataFrame:
    """Errors of products on tensor cores in XLA's tables, by device and type: the device left out. NVIDIA's are from
    the fit of all GPUs but that chip, AMD's from one to the other device of AMD."""
    rows = pd.read_csv(folder / "matmul_tensor_cores.csv")
    found = []
    for device in DEVICES:
        if device in _OTHER_OF_AMD:
            fitted, _ = fit_tensor(few(device_groups(rows, (_OTHER_OF_AMD[device],))), lambda group: group.name)
        else:
            fitted, _ = _tensor_without(folder, _SAME_CHIP[device])
        for group in device_groups(rows, (device,)):
            ratios = group.ratios(decode(TensorCoefficients, fitted), _DATA_SHEET)
            found.append([device, group.name.split()[1], len(ratios), *off(ratios), float(np.median(ratios))])
    table: pd.DataFrame = pd.DataFrame(found, columns=["device", "type", "rows", "mean", "median", "ratio"])
    return table


def error_rows(folder: Path) -> list[Fit]:
    """What the coefficients' file says of its errors."""
    inference = [each for each in whole_models(folder) if not each.case.training]
    found = []
    for gpu in (*GPUS, "all"):
        mine = [each for each in inference if gpu in (each.case.gpu, "all")]
        mean, median = off(each.ratio for each in mine)
        one_mean, one_median = off(with_one_other(mine))
        found.append(
            {
                "left_out": gpu,
                "cases": len(mine),
                "mean": mean,
                "median": median,
                "mean_with_one_other": one_mean,
                "median_with_one_other": one_median,
            }
        )
    return found


def deviations(folder: Path) -> tuple[float, float]:
    """Standard deviations of the logarithm over whole models: on a GPU nobody measured, and with one other case."""
    inference = [each for each in whole_models(folder) if not each.case.training]
    by_gpu = [[np.log(each.ratio) for each in inference if each.case.gpu == gpu] for gpu in GPUS]
    between = float(np.sqrt(np.mean([np.mean(np.square(each)) for each in by_gpu])))
    return between, float(np.std(np.log(with_one_other(inference))))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with operators.csv and its neighbours")
    folder = parser.parse_args(arguments).data
    print("| GPU left out | cases | mean | median | mean, one other known | median |\n|---|---:|---:|---:|---:|---:|")
    for row in error_rows(folder):
        print("|", " | ".join(f"{v:.1%}" if isinstance(v, float) else str(v) for v in row.values()), "|")
    print("\nsd of the logarithm: a new GPU {:.3f}, one other case known {:.3f}\n".format(*deviations(folder)))
    print("| training on V100, left out | whole | forward | backward |\n|---|---:|---:|---:|")
    for each in whole_models(folder, ("V100-PCIE-32GB",)):
        if each.case.training:
            forward, backward = each.forward_s / each.case.forward_s, each.backward_s / each.case.backward_s
            print(f"| {each.case.name} | {each.ratio - 1:+.1%} | {forward - 1:+.1%} | {backward - 1:+.1%} |")
    for table in (operators_by_kind(folder), products_left_out(folder), tensor_products(folder)):
        print("\n|", " | ".join(table.columns), "|\n|" + "---|" * len(table.columns))
        for line in table.itertuples(index=False):
            print("|", " | ".join(f"{v:.1%}" if isinstance(v, float) else str(v) for v in line), "|")


if __name__ == "__main__":
    main()
