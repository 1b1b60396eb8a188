"""Prints how far the seconds of operators and of whole models are off, for docs/accuracy.md.

python -m scripts.fit.operators_errors --data ../shared/data/operators

A GPU is left out with everything measured on its chip, a device of the tensor-core tables likewise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from ddlprof.base.typed import decode
from ddlprof.instance_catalog import load
from ddlprof.recommender.compute.operator_coefficients import OperatorCoefficients
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.compute.tensor_time import TensorCoefficients
from ddlprof.recommender.estimate import Z80
from scripts.bench.jobs import print_table
from scripts.fit.operator_data import ModelCase, read_models
from scripts.fit.operators_fit import STATED, chip, fit, products
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
    heads = ("GPU left out", "cases", "mean", "median", "mean, one other known", "median")
    print_table(heads, [_shown(row.values()) for row in error_rows(folder)])
    print("\nsd of the logarithm: a new GPU {:.3f}, one other case known {:.3f}".format(*deviations(folder)))
    training = [
        [each.case.name, each.ratio - 1, each.forward_s / each.case.forward_s - 1,
         each.backward_s / each.case.backward_s - 1]
        for each in whole_models(folder, ("V100-PCIE-32GB",)) if each.case.training
    ]  # fmt: skip
    print_table(("training on V100, left out", "whole", "forward", "backward"), map(_shown, training))
    for table in (products_left_out(folder), tensor_products(folder)):
        print_table(list(table.columns), map(_shown, table.itertuples(index=False)))


def _shown(row: Iterable[object]) -> list[str]:
    return [f"{each:.1%}" if isinstance(each, float) else str(each) for each in row]


if __name__ == "__main__":
    main()
