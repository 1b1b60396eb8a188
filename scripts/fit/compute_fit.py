"""The fit of one GPU's computation to published measurements; `compute` writes it.

Two fits of one form (`combine_fit`): of steps whose operators are known, and of steps of which FLOPs are known or only
other steps. Both leave `ddlprof.recommender.compute.combine` with the effects of GPUs, and with how much jobs differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ddlprof.recommender.compute.step_parts import PARTS, Changes, FlopParts, OperatorParts, PartsSource
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.target import default_catalog
from scripts.fit import published
from scripts.fit.combine_fit import BATCH_RANGE, Sds, Steps, fit_sds, gpu_effects, runtime_effects

PROBED_SD = 0.5
"""Assumed: a probe leaves half of the spread between GPUs."""
STEPS_DEVICE_SD = 0.6
"""Where only steps are known, FLOPs are such that the largest step comes out: its own spread is taken as this."""
MOST_FLOPS_S = 1e6
"""1e9 FLOPs a second that no GPU reaches: the batch is in other units there."""
Fit = dict[str, Any]
KNOWLEDGE = ("operators", "flops")
KnownSteps = dict[str, pd.DataFrame]


def table_of(profet: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Both tables of `throughput` in one, a row for each job, GPU, precision and batch, with its network by name."""
    both = pd.concat([profet.assign(source="PROFET", precision="fp32", gflops=np.nan), others], ignore_index=True)
    keys = ["source", "job", "model", "gpu", "precision", "batch"]
    rows: pd.DataFrame = both.groupby(keys, as_index=False).agg(
        {"seconds": "median", "gflops": "first", "tensors": "first"}
    )
    rows["network"] = [
        published.name_of(*of) for of in rows[["source", "job", "model"]].itertuples(index=False, name=None)
    ]
    counted = {name: published.flops_per_sample(step) / 1e9 for name, step in published.steps().items()}
    rows["family"] = rows.source + "|" + rows.model
    rows["gflops"] = rows.network.map(counted).fillna(rows.gflops)
    senseless = rows.gflops * rows.batch / rows.seconds > MOST_FLOPS_S
    rows.loc[senseless, "gflops"] = np.nan
    return rows


def parts_of(row: Any, knowledge: str) -> PartsSource | None:
    """The parts of a row's step; None where they are not known."""
    if knowledge == "operators":
        return _sources()[row.network] if isinstance(row.network, str) else None
    return FlopParts(row.gflops * 1e9, None if np.isnan(row.tensors) else row.tensors) if row.gflops > 0.01 else None


def steps_of(table: pd.DataFrame, knowledge: str) -> pd.DataFrame:
    """The rows that the fit sees: those whose parts are known, with the columns of `combine_fit.Steps`."""
    found = []
    catalog = default_catalog()
    row: Any
    for row in table.itertuples(index=False):
        source = parts_of(row, knowledge)
        if source is None:
            continue
        gpu = catalog.gpu(row.gpu)
        precision = "amp-fp16" if row.precision == "half" else str(row.precision)
        try:
            parts = source.at(gpu, int(row.batch), precision, Changes())
        except PredictionError:
            continue
        found.append(
            {
                "software": row.source, "family": f"{row.source}|{row.model}", "job": row.job, "model": row.model,
                "gpu": row.gpu, "precision": row.precision, "architecture": gpu.compute_capability or "",
                "batch": row.batch, "seconds": row.seconds, **dict(zip(PARTS, parts.seconds, strict=True)),
            }
        )  # fmt: skip
    frame: pd.DataFrame = pd.DataFrame(found)
    return frame


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Three batches of each series at most, so that large sources do not decide alone and the fit is quick."""

    def few(group: pd.DataFrame) -> Iterator[int]:
        order = group.sort_values("batch").index.tolist()
        yield from {order[0], order[len(order) // 2], order[-1]}

    kept = [i for _, group in rows.groupby(["job", "gpu", "precision"]) for i in few(group)]
    chosen: pd.DataFrame = rows.loc[sorted(kept)]
    return chosen


def known_steps(table: pd.DataFrame) -> KnownSteps:
    """What is fitted, by knowledge; a minute."""
    return {knowledge: thinned(steps_of(table, knowledge)) for knowledge in KNOWLEDGE}


def search(steps: KnownSteps) -> dict[str, Sds]:
    """The standard deviations by knowledge; minutes."""
    return {knowledge: fit_sds(Steps(rows)) for knowledge, rows in steps.items()}


def fit(steps: KnownSteps, sds: dict[str, Sds], widths: dict[str, float] | None = None) -> Fit:
    """Everything in the form of `coefficients.json`, given the standard deviations; seconds."""
    fitted: Fit = {}
    for knowledge, rows in steps.items():
        by = {knowledge: sds[knowledge]}
        if knowledge == "flops":
            by["steps"] = {**sds[knowledge], "family": STEPS_DEVICE_SD}
        fitted[knowledge] = {
            "effects": runtime_effects(by), **gpu_effects(Steps(rows), sds[knowledge]),
            "probed_sd": PROBED_SD, "batch_range": BATCH_RANGE,
        }  # fmt: skip
    return {**fitted, "widths": widths or {}}


_known: dict[str, PartsSource] = {}


def _sources() -> dict[str, PartsSource]:
    if not _known:
        _known.update({n: OperatorParts(step, default_catalog()) for n, step in published.steps().items()})
    return _known
