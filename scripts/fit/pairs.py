"""Fits ratios of step times between the GPUs that PROFET measured; `compute` writes them.

Ridge regression of the logarithm of the ratio on `gpu_ratios.features`, and `gpu_ratios.LaunchRatio` for models whose
parameter tensors are counted. Standard deviations are those of models left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from ddlprof.recommender.compute.gpu_ratios import Array, LaunchRatio, Ratio, Series, features, quadratic
from ddlprof.recommender.estimate import Z80

RIDGE = 3.0
COVERAGE = 0.8
Fit = dict[str, Any]
_PRIOR = np.array([0, 0, 0, 0, 0, 0, 0.5, -2, 0.5, -2, -1.5])
"""`factor` (its constant is set to the mean), then logarithms: launch of any step in milliseconds and for each tensor,
the same on the measured GPU, least work. The launches are those of a small step of TensorFlow, roughly."""
_PRIOR_SD = np.array([1, 0.3, 0.3, 0.1, 0.1, 0.3, 0.7, 0.7, 0.7, 0.7, 0.5])
_SHRINKAGE = 0.015
"""Weight of the prior against that of all steps together."""


def fit_pairs(profet: pd.DataFrame, spreads: list[Fit] | None = None) -> list[Fit]:
    """Every pair of GPUs. `spreads`: pairs whose standard deviations are taken as they are, which saves minutes."""
    known = {(pair["source"], pair["target"]): pair for pair in spreads or []}
    return [
        {"source": source, "target": target, **_pair_fits(of_pair, known.get((source, target)))}
        for (source, target), of_pair in pair_cases(profet).groupby(["source", "target"])
    ]


def pair_cases(profet: pd.DataFrame) -> pd.DataFrame:
    """One row for each step, each other GPU it was measured on, and whether one batch or all are known: columns
    source, target, job, model, tensors, several, values (features), seconds, y (logarithm of the ratio), weight."""
    steps = {key: group.sort_values("batch") for key, group in profet.groupby(["job", "gpu"])}
    rows = []
    for (job, source), measured in steps.items():
        series = Series(tuple(measured.batch), tuple(measured.seconds))
        for target in profet.gpu.unique():
            if target == source or (job, target) not in steps:
                continue
            there = steps[job, target].set_index("batch").seconds
            for batch, seconds in zip(series.batches, series.seconds, strict=True):
                if batch not in there.index:
                    continue
                for several in (False, True):
                    known = series if several else Series((batch,), (seconds,))
                    rows.append(
                        {
                            "source": source, "target": target, "job": job, "model": measured.model.iloc[0],
                            "tensors": measured.tensors.iloc[0], "several": several,
                            "values": features(known, batch, seconds), "seconds": seconds,
                            "y": math.log(there[batch] / seconds),
                        }
                    )  # fmt: skip
    table: pd.DataFrame = pd.DataFrame(rows)
    table["weight"] = 1 / table.groupby(["source", "target", "several", "model"]).y.transform("size")
    return table


def _by_form(cases: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [("one_batch", cases[~cases.several]), ("several_batches", cases[cases.several])]


def _pair_fits(cases: pd.DataFrame, known: Fit | None) -> Fit:
    """One pair of GPUs: from one batch and from several, without and with the number of tensors."""
    without = {form: _pair_fit(c, False, known and known[form]) for form, c in _by_form(cases)}
    counted = cases[cases.tensors.notna()]
    return {
        **without,
        **{
            f"{form}_and_tensors": _pair_fit(c, True, known and known[f"{form}_and_tensors"])
            for form, c in _by_form(counted)
        },
    }


def _pair_fit(cases: pd.DataFrame, counted: bool, known: Fit | None) -> Fit:
    """One form of a pair, with the errors of models left out as its spread."""
    values, y, weight = _arrays(cases)
    if counted:
        values = np.column_stack([values, np.log(cases.tensors.to_numpy(float))])

    def fitted(rows: NDArray[np.bool_]) -> Fit:
        data = values[rows], y[rows], weight[rows]
        return _fit_launch(*data) if counted else _fit_regression(*data)

    everything = np.ones(len(cases), dtype=bool)
    if known:
        return {**fitted(everything), "bounds_ms": known["bounds_ms"], "sd": known["sd"]}
    errors = np.zeros(len(cases))
    for model in cases.model.unique():
        out = (cases.model == model).to_numpy()
        without = {**fitted(~out), "bounds_ms": [], "sd": [0.0]}
        ratio = LaunchRatio.from_json(without) if counted else Ratio.from_json(without)
        errors[out] = [abs(ratio.log(v) - target) for v, target in zip(values[out], y[out], strict=True)]
    return {**fitted(everything), **_spread(cases.seconds.to_numpy() * 1e3, errors)}


def _spread(milliseconds: Array, errors: Array) -> Fit:
    """Standard deviations whose 80 % interval holds 80 % of the errors, for short, middle and long steps."""
    bounds = np.quantile(milliseconds, [1 / 3, 2 / 3])
    part = np.searchsorted(bounds, milliseconds)
    sd = [float(np.quantile(errors[part == i], COVERAGE)) / Z80 for i in range(3)]
    return {"bounds_ms": bounds.tolist(), "sd": sd}


def _arrays(cases: pd.DataFrame) -> tuple[Array, Array, Array]:
    return np.stack(cases["values"].to_list()), cases.y.to_numpy(), cases.weight.to_numpy()


def _fit_launch(values: Array, targets: Array, weights: Array) -> dict[str, Any]:
    """Returns the form that `LaunchRatio.from_json` reads, without its standard deviations.

    `values` (n, 3) or (n, 5), their last column the logarithm of the tensors; `targets` and `weights` (n,).
    """
    prior = _PRIOR.copy()
    prior[0] = np.average(targets, weights=weights)
    root = np.sqrt(weights / weights.mean())
    pull = _SHRINKAGE * np.sqrt(len(targets)) / _PRIOR_SD

    def residuals(parameters: Array) -> Array:
        ratio = LaunchRatio.from_json({**_named(parameters, values), "bounds_ms": [], "sd": [0.0]})
        return np.concatenate([root * (ratio.logs(values) - targets), pull * (parameters - prior)])

    return _named(least_squares(residuals, prior).x, values)


def _named(parameters: Array, values: Array) -> dict[str, Any]:
    return {
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
        "centre": values[:, :2].mean(axis=0).tolist(),
        "factor": parameters[:6].tolist(),
        "launch_ms": np.exp(parameters[6:8]).tolist(),
        "source_launch_ms": np.exp(parameters[8:10]).tolist(),
        "least_work": float(np.exp(parameters[10])),
    }


def _fit_regression(values: Array, targets: Array, weights: Array) -> dict[str, Any]:
    """What `Ratio.from_json` reads, without its standard deviations. The intercept is not shrunk.

    `values` (n, features), `targets` and `weights` (n,).
    """
    scaler = StandardScaler().fit(values)
    scaled = scaler.transform(values)
    fitted = Ridge(alpha=RIDGE).fit(quadratic(scaled), targets, weights / weights.mean())
    return {
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
        "centre": scaler.mean_.tolist(),
        "scale": scaler.scale_.tolist(),
        "intercept": float(fitted.intercept_),
        "coefficients": fitted.coef_.tolist(),
    }
