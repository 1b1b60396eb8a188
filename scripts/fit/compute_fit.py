"""The fit of one GPU's computation to published measurements; `compute` writes it.

Speeds: per workload an effect, per GPU and precision an offset from the data sheet, shrunk to its architecture
(ridge). Pairs of GPUs that PROFET measured: ridge regression of the logarithm of the ratio on `scaling.features`, and
`launch.LaunchRatio` for models whose parameter tensors are counted.
All other pairs: how much of the difference in speed shows. Standard deviations are those of models left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from recommender.compute.gpu_speed import PRECISIONS, Offset, Speeds, nominal_log_speed
from recommender.compute.launch_ratio import LaunchRatio
from recommender.compute.time_ratio import Array, Ratio, Series, features
from recommender.estimate import Z80
from recommender.target import default_catalog
from scripts.fit.launch_ratio import fit_launch
from scripts.fit.regression import fit_regression

RIDGE = 3.0
PRIOR_SHARE = 0.5
"""The weight of the peak in a GPU's speed, against its memory bandwidth."""
SHARE_SD, ARCHITECTURE_SD, GPU_SD, NOISE_SD = 0.15, 0.25, 0.15, 0.2
NEW_GPU_SD, NEW_ARCHITECTURE_SD = 0.35, 0.5
"""Set by hand after a look at GPUs left out of the fit (`compute_errors`): the ridge believes in much less. The
coverage that script reports for them is therefore not independent of these two."""
COVERAGE = 0.8
WIDEN = 1.3
"""The factor of intervals between GPUs or precisions without a fitted pair: sources differ more than their mean says.
Set by hand after a look at the coverage of models left out."""
LAUNCH_S_PER_TENSOR = 1.5e-4
"""Set by hand, not fitted: ResNets of PROFET at their smallest take 0.15-0.2 ms for each parameter tensor on a V100."""
MOST_OVER = 8.0
"""The limit up to which the share of a difference that shows falls with the cost of a sample over the smallest one
(logarithm): a step that does not grow with the batch at all is bound by the host."""
Fit = dict[str, Any]


def fit(profet: pd.DataFrame, others: pd.DataFrame) -> Fit:
    """Everything in the form of `compute.json`, from two tables of `_throughput`."""
    saturated = _saturated(profet, others)
    speeds = fit_speeds(saturated)
    cases = pair_cases(profet)
    fitted: Fit = {
        "speeds": speeds,
        "pairs": [
            {"source": source, "target": target, **_pair_fits(of_pair)}
            for (source, target), of_pair in cases.groupby(["source", "target"])
        ],
        "share": {form: _share_fit(c, speeds) for form, c in _by_form(cases)},
        "batches": fit_batches(profet, others),
        "workload_sd": _workload_sd(saturated, speeds),
    }
    return {**fitted, "flops": fit_flops(others, speeds)}


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


def fit_speeds(saturated: pd.DataFrame) -> Fit:
    """Offsets of GPUs from their data sheets; `saturated` has columns job, gpu, precision, per_sample_s."""
    catalog = default_catalog()
    kept = saturated[saturated.groupby("job").gpu.transform("size") > 1]
    cells = sorted(set(zip(kept.gpu, kept.precision, strict=True)))
    architectures = sorted({_architecture(gpu) for gpu, _ in cells})
    jobs = {job: i for i, job in enumerate(kept.job.unique())}
    peaks = [nominal_log_speed(catalog.gpu(gpu), precision, 1.0) for gpu, precision in cells]
    bandwidths = [nominal_log_speed(catalog.gpu(gpu), precision, 0.0) for gpu, precision in cells]
    # Columns: share (3), precision (3), architecture, cell, job.
    first = (0, 3, 6, 6 + len(architectures), 6 + len(architectures) + len(cells))
    design = np.zeros((len(kept), first[4] + len(jobs)))
    y = np.zeros(len(kept))
    for row, (job, gpu, precision, per_sample_s) in enumerate(
        kept[["job", "gpu", "precision", "per_sample_s"]].itertuples(index=False)
    ):
        cell, p = cells.index((gpu, precision)), PRECISIONS.index(precision)
        peak, bandwidth = peaks[cell], bandwidths[cell]
        design[row, [p, 3 + p, first[2] + architectures.index(_architecture(gpu)), first[3] + cell]] = (
            -(peak - bandwidth), -1, -1, -1,
        )  # fmt: skip
        design[row, first[4] + jobs[job]] = 1
        y[row] = math.log(per_sample_s) + PRIOR_SHARE * peak + (1 - PRIOR_SHARE) * bandwidth
    sd = np.concatenate(
        [[SHARE_SD] * 3, [1e-3, 1, 1], [ARCHITECTURE_SD] * len(architectures), [GPU_SD] * len(cells), [1e3] * len(jobs)]
    )
    precision_matrix = design.T @ design / NOISE_SD**2 + np.diag(sd**-2.0)
    covariance = np.linalg.inv(precision_matrix)
    solution = covariance @ design.T @ y / NOISE_SD**2
    share = [PRIOR_SHARE + float(s) for s in solution[:3]]
    offsets: Fit = {}
    for i, (gpu, precision) in enumerate(cells):
        p, a = PRECISIONS.index(precision), architectures.index(_architecture(gpu))
        log = float(solution[3 + p] + solution[first[2] + a] + solution[first[3] + i])
        offsets.setdefault(gpu, {})[precision] = {"log": log, "sd": math.sqrt(covariance[first[3] + i, first[3] + i])}
    return {
        "share": dict(zip(PRECISIONS, share, strict=True)),
        "precision": dict(zip(PRECISIONS, map(float, solution[3:6]), strict=True)),
        "architecture": dict(zip(architectures, map(float, solution[first[2] : first[3]]), strict=True)),
        "gpus": offsets,
        "unmeasured": _between_neighbours(
            dict(zip(architectures, solution[first[2] : first[3]].tolist(), strict=True))
        ),
        "new_gpu_sd": NEW_GPU_SD,
        "new_architecture_sd": NEW_ARCHITECTURE_SD,
    }


def _between_neighbours(measured: dict[str, float]) -> dict[str, float]:
    """Offsets of the architectures that no source measured: the mean of the next older and newer ones that one did."""
    capability: dict[str, float] = {}
    for gpu in default_catalog().gpus:
        if gpu.architecture and gpu.compute_capability:
            capability.setdefault(gpu.architecture.split()[0], float(gpu.compute_capability))
    order = sorted(capability, key=lambda name: capability[name])
    found = {}
    for i, name in enumerate(order):
        if name not in measured:
            older = [measured[n] for n in order[:i] if n in measured][-1:]
            newer = [measured[n] for n in order[i:] if n in measured][:1]
            found[name] = float(np.mean(older + newer))
    return found


def log_speed(speeds: Fit, gpu: str, precision: str) -> float:
    """The same as `Speeds.of`, from the JSON form."""
    return _coefficient_speeds(speeds).of(default_catalog().gpu(gpu), precision).log


def fit_batches(profet: pd.DataFrame, others: pd.DataFrame) -> Fit:
    """What of a step does not grow with the batch, by its length, and how far off that is at the next batch; and how
    far off the straight line between two batches is at one between them. Jobs count alike."""
    both = pd.concat([profet.assign(precision="fp32"), others])
    next_ones: list[tuple[float, float, float]] = []
    errors_between = []
    for _, group in both.groupby(["job", "gpu", "precision"]):
        steps = group.groupby("batch").seconds.median()
        b, s = steps.index.to_numpy(float), steps.to_numpy()
        next_ones += [(s[i], s[i + 1] / s[i], b[i + 1] / b[i]) for i in range(len(b) - 1)]
        for i in range(1, len(b) - 1):
            line = np.interp(b[i], [b[i - 1], b[i + 1]], [s[i - 1], s[i + 1]])
            nearest = min(math.log(b[i] / b[i - 1]), math.log(b[i + 1] / b[i]))
            errors_between.append(abs(math.log(line / s[i])) / nearest)
    seconds, longer, larger = np.array(next_ones).T
    shares = np.clip(1 - (longer - 1) / (larger - 1), 0, 1)
    bounds = np.quantile(seconds, np.linspace(0, 1, 5))
    part = np.clip(np.searchsorted(bounds, seconds) - 1, 0, 3)
    at = [float(np.exp(np.log(seconds[part == i]).mean())) * 1e3 for i in range(4)]
    typical = [float(np.median(shares[part == i])) for i in range(4)]
    share = np.interp(np.log(seconds * 1e3), np.log(at), typical)
    errors = abs(np.log(longer / (share + (1 - share) * larger))) / np.log(larger)
    return {
        "milliseconds": at, "fixed_share": typical, "sd": float(np.quantile(errors, COVERAGE)) / Z80,
        "between_sd": float(np.quantile(errors_between, COVERAGE)) / Z80,
    }  # fmt: skip


def fit_flops(others: pd.DataFrame, speeds: Fit) -> Fit:
    """Seconds of a step from its FLOPs and the speed of its GPU: the median of models, each counting once.

    Left out are rows whose FLOPs cannot be meant for that row (more than the peak of the GPU: batches in tokens) and
    models of nearly nothing but embeddings, below 10 MFLOP a sample."""
    catalog = default_catalog()
    rows = others[others.gflops > 0.01]
    cells = list(zip(rows.gpu, rows.precision, strict=True))
    peak = np.array([math.exp(nominal_log_speed(catalog.gpu(gpu), precision, 1.0)) for gpu, precision in cells])
    speed = np.array([log_speed(speeds, gpu, precision) for gpu, precision in cells])
    flops = rows.gflops * 1e9 * rows.batch
    rows = rows.assign(flops=flops, y=np.log(rows.seconds) + speed - np.log(flops))[flops / rows.seconds < peak * 1e12]
    each = rows.groupby(["model", "gpu", "precision"]).agg(y=("y", "median")).reset_index()
    of_model = each.groupby("model").y.median()
    errors = [abs(y - of_model.drop(model).median()) for model, y in zip(each.model, each.y, strict=True)]
    weights = 1 / each.groupby("model").y.transform("size").to_numpy()
    spread = _weighted_quantile(np.array(errors), weights, COVERAGE)
    return {
        "intercept": float(of_model.median()), "power": 1.0, "sd": spread / Z80,
        "low": float(rows.flops.min()), "high": float(rows.flops.max()), "launch_s_per_tensor": LAUNCH_S_PER_TENSOR,
    }  # fmt: skip


def _by_form(cases: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [("one_batch", cases[~cases.several]), ("several_batches", cases[cases.several])]


def _pair_fits(cases: pd.DataFrame) -> Fit:
    """One pair of GPUs: from one batch and from several, without and with the number of tensors."""
    without = {form: _pair_fit(c, counted=False) for form, c in _by_form(cases)}
    counted = cases[cases.tensors.notna()]
    return {**without, **{f"{form}_and_tensors": _pair_fit(c, counted=True) for form, c in _by_form(counted)}}


def _pair_fit(cases: pd.DataFrame, counted: bool) -> Fit:
    """One form of a pair, with the errors of models left out as its spread."""
    values, y, weight = _arrays(cases)
    if counted:
        values = np.column_stack([values, np.log(cases.tensors.to_numpy(float))])

    def fitted(rows: NDArray[np.bool_]) -> Fit:
        data = values[rows], y[rows], weight[rows]
        return fit_launch(*data) if counted else fit_regression(*data, squares=True, ridge=RIDGE)

    errors = np.zeros(len(cases))
    for model in cases.model.unique():
        out = (cases.model == model).to_numpy()
        without = {**fitted(~out), "bounds_ms": [], "sd": [0.0]}
        ratio = LaunchRatio.from_json(without) if counted else Ratio.from_json(without, squares=True)
        errors[out] = [abs(ratio.log(v) - target) for v, target in zip(values[out], y[out], strict=True)]
    everything = np.ones(len(cases), dtype=bool)
    return {**fitted(everything), **_spread(cases.seconds.to_numpy() * 1e3, errors)}


def _share_fit(cases: pd.DataFrame, speeds: Fit) -> Fit:
    """Which share of the difference in speed shows, over all pairs."""
    values, y, weight = _arrays(cases)
    logs = {gpu: log_speed(speeds, gpu, "fp32") for gpu in set(cases.source)}
    difference = np.array([logs[s] - logs[t] for s, t in zip(cases.source, cases.target, strict=True)])
    fitted = fit_regression(values, y / difference, weight * difference**2, squares=False, ridge=RIDGE)
    if values.shape[1] == 4:
        fitted["high"] = [*fitted["high"][:3], MOST_OVER]
    ratio = Ratio.from_json({**fitted, "bounds_ms": [], "sd": [0.0]}, squares=False)
    shown = np.clip([ratio.log(v) for v in values], 0.0, 1.2)
    return {**fitted, **_spread(cases.seconds.to_numpy() * 1e3, abs(shown - y / difference))}


def _spread(milliseconds: Array, errors: Array) -> Fit:
    """Standard deviations whose 80 % interval holds 80 % of the errors, for short, middle and long steps."""
    bounds = np.quantile(milliseconds, [1 / 3, 2 / 3])
    part = np.searchsorted(bounds, milliseconds)
    sd = [float(np.quantile(errors[part == i], COVERAGE)) / Z80 for i in range(3)]
    return {"bounds_ms": bounds.tolist(), "sd": sd}


def _arrays(cases: pd.DataFrame) -> tuple[Array, Array, Array]:
    return np.stack(cases["values"].to_list()), cases.y.to_numpy(), cases.weight.to_numpy()


def _saturated(profet: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The least cost of a sample over all batches: source, job, gpu, precision, per_sample_s."""
    both = pd.concat([profet.assign(precision="fp32", source="PROFET"), others])
    both = both.assign(per_sample_s=both.seconds / both.batch)
    least: pd.DataFrame = both.groupby(["source", "job", "gpu", "precision"], as_index=False).per_sample_s.min()
    return least


def _workload_sd(saturated: pd.DataFrame, speeds: Fit) -> float:
    """How much jobs differ in the ratio of two GPUs or precisions, beyond what the speeds say. Sources count alike."""
    speed = [log_speed(speeds, g, p) for g, p in zip(saturated.gpu, saturated.precision, strict=True)]
    effect = np.log(saturated.per_sample_s) + speed
    errors = pd.DataFrame(
        [
            (saturated.source[group.index[0]], abs(a - b))
            for _, group in effect.groupby(saturated.job)
            for i, a in enumerate(group)
            for b in group.iloc[i + 1 :]
        ],
        columns=["source", "error"],
    )
    weights = 1 / errors.groupby("source").error.transform("size").to_numpy()
    return WIDEN * _weighted_quantile(errors.error.to_numpy(), weights, COVERAGE) / Z80


def _coefficient_speeds(speeds: Fit) -> Speeds:
    gpus = {gpu: {p: Offset(**offset) for p, offset in by.items()} for gpu, by in speeds["gpus"].items()}
    return Speeds(**{**speeds, "gpus": gpus})


def _weighted_quantile(values: Array, weights: Array, q: float) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), q * weights.sum())])


def _architecture(gpu: str) -> str:
    return (default_catalog().gpu(gpu).architecture or "").split()[0]
