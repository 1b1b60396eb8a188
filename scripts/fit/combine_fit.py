"""Fits what `recommender.compute.combine` believes: how much effects differ, and what published steps say of GPUs.

Standard deviations of effects: the most likely ones given all steps, found one by one. Effects of GPUs: their posterior
given those. Both are linear in the effects around the most probable ones, as the prediction itself is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve

from ddlprof.recommender.compute.combine import PARTS_OF_EFFECT
from ddlprof.recommender.compute.step_parts import PARTS, Array, shares, total_s
from ddlprof.recommender.target import default_catalog

JOB_EFFECTS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "software device": (("software",), "device", 0.25),
    "software fixed": (("software",), "fixed", 0.45),
    "software launch": (("software",), "launch", 0.8),
    "software overhead": (("software",), "overhead", 0.7),
    "software on gpu": (("software", "gpu", "precision"), "device", 0.12),
    "software host of gpu": (("software", "gpu", "precision"), "host", 0.2),
    "family": (("family",), "device", 0.15),
    "family mix": (("family",), "mix", 0.4),
    "family fixed": (("family",), "fixed", 0.6),
    "family launch": (("family",), "launch", 0.2),
    "family overhead": (("family",), "overhead", 0.2),
    "job": (("job",), "device", 0.08),
    "job launch": (("job",), "launch", 0.05),
    "job precision": (("family", "precision"), "device", 0.1),
    "job on gpu": (("family", "gpu", "precision"), "device", 0.1),
    "job host of gpu": (("family", "gpu", "precision"), "host", 0.12),
    "batch": (("job", "near"), "device", 0.12),
    "batch on gpu": (("job", "gpu", "precision", "near"), "device", 0.07),
    "step": (("job", "gpu", "precision", "batch"), "device", 0.07),
}
"""Labels, what they are on, and where the search for the standard deviation begins. A family is a model of a source:
PROFET's jobs are the sizes of images of one. A job that is predicted is a family of its own."""
GPU_EFFECTS: dict[str, tuple[str | None, str, float]] = {
    "compute": (None, "compute", 0.5),
    "memory": (None, "memory", 0.5),
    "fixed": (None, "fixed", 1.0),
    "launch": (None, "launch", 0.7),
    "overhead": (None, "overhead", 0.7),
    "precision": ("precision", "compute", 0.2),
    "architecture": ("architecture", "compute", 0.15),
    "architecture memory": ("architecture", "memory", 0.1),
    "gpu": ("cell", "compute", 0.2),
    "gpu memory": ("gpu", "memory", 0.2),
    "gpu fixed": ("gpu", "fixed", 0.5),
    "gpu host": ("gpu", "host", 0.25),
}
"""The column that they differ by (None: one for all), what they are on, and where the search begins."""
FIXED_SDS = ("compute", "memory", "fixed", "launch", "overhead")
"""Not searched: their values hardly matter."""
PRIOR_SD = 0.6
"""How far, in the logarithm, the search goes from where it began without good reason: there are few sources."""
NOISE = 0.03
BATCH_RANGE = 1.5
_ROUNDS, _STEP, _LEAST_GAIN = 5, 0.25, 0.02
"""The search: rounds over all, the step in the logarithm, and the least gain in the logarithm of the likelihood."""
Sds = dict[str, float]


def start() -> Sds:
    """Where the search begins."""
    return {name: sd for name, (_, _, sd) in (JOB_EFFECTS | GPU_EFFECTS).items()}


class Steps:
    """Measured steps with their parts, as the mixed model sees them."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """`rows`: software, family, job, gpu, precision, architecture, batch, seconds and a column for each part."""
        self.rows = rows.reset_index(drop=True).assign(
            near="", cell=rows.gpu.to_numpy() + "|" + rows.precision.to_numpy()
        )
        self.parts: Array = self.rows[list(PARTS)].to_numpy(float).T
        self.log_s: Array = np.log(self.rows.seconds.to_numpy(float))
        self.logs = np.zeros_like(self.parts)
        log_batch = np.log(self.rows.batch.to_numpy(float))
        fading = np.exp(-np.abs(log_batch[:, None] - log_batch[None, :]) / BATCH_RANGE)
        self.same: dict[str, Array] = {}
        for name, (labels, _, _) in JOB_EFFECTS.items():
            keys = self._keys(list(labels))
            same = (keys[:, None] == keys[None, :]).astype(float)
            self.same[name] = same * fading if "near" in labels else same
        for name, (column, _, _) in GPU_EFFECTS.items():
            keys = self._keys([column] if column else [])
            self.same[name] = (keys[:, None] == keys[None, :]).astype(float)

    def _keys(self, columns: list[str]) -> Any:
        if not columns:
            return np.zeros(len(self.rows), dtype=int)
        return pd.factorize(self.rows[columns].astype(str).agg("|".join, axis=1))[0]

    def counts(self) -> Array:
        """How much each part counts at the effects believed so far."""
        return shares(self.parts * np.exp(self.logs))

    def covariance(self, sds: Mapping[str, float], counts: Array) -> Array:
        """Of the logarithms of all steps."""
        found = np.diag(np.full(len(self.rows), NOISE**2))
        for name, (_, on, _) in (JOB_EFFECTS | GPU_EFFECTS).items():
            load = sds[name] * (np.array(PARTS_OF_EFFECT[on]) @ counts)
            found += self.same[name] * np.outer(load, load)
        return found

    def unexplained(self, counts: Array) -> Array:
        """What effects have to explain: the logarithm measured over that of the parts, linear around `logs`."""
        expected = np.log(total_s(self.parts * np.exp(self.logs))) - (counts * self.logs).sum(axis=0)
        result: Array = self.log_s - expected
        return result

    def settle(self, sds: Mapping[str, float], steps: int = 5) -> tuple[Array, Any, Array]:
        """Goes to the most probable effects; returns the shares there, the factor of the covariance and its product
        with what is unexplained."""
        for step in range(steps + 1):
            counts = self.counts()
            factor = cho_factor(self.covariance(sds, counts), lower=True)
            weights = cho_solve(factor, self.unexplained(counts))
            if step == steps:
                break
            logs = np.zeros_like(self.logs)
            for name, (_, on, _) in (JOB_EFFECTS | GPU_EFFECTS).items():
                parts = np.array(PARTS_OF_EFFECT[on])
                logs += parts[:, None] * (sds[name] ** 2 * (self.same[name] @ ((parts @ counts) * weights)))
            self.logs = 0.4 * self.logs + 0.6 * np.clip(logs, -4, 4)
        return counts, factor, weights

    def share_of(self, name: str, counts: Array) -> Array:
        """The covariance that an effect of standard deviation one gives all steps."""
        load = np.array(PARTS_OF_EFFECT[(JOB_EFFECTS | GPU_EFFECTS)[name][1]]) @ counts
        return self.same[name] * np.outer(load, load)


def _cost(covariance: Array, rest: Array) -> float:
    """Minus the logarithm of the likelihood."""
    try:
        factor, lower = cho_factor(covariance, lower=True)
    except np.linalg.LinAlgError:
        return math.inf
    return float(rest @ cho_solve((factor, lower), rest) / 2 + np.log(np.diag(factor)).sum())


def _prior_cost(sd: float, first: float) -> float:
    return (math.log(sd / first) / PRIOR_SD) ** 2 / 2


def fit_sds(steps: Steps) -> Sds:
    """The most likely standard deviations, with a prior around where the search begins."""
    first = start()
    sds = dict(first)
    for _ in range(_ROUNDS):
        counts, _, _ = steps.settle(sds)
        rest, covariance = steps.unexplained(counts), steps.covariance(sds, counts)
        for name in sds:
            if name in FIXED_SDS:
                continue
            share = steps.share_of(name, counts)
            best = _cost(covariance, rest) + _prior_cost(sds[name], first[name])
            for way in (_STEP, -_STEP):
                while True:
                    tried = sds[name] * math.exp(way)
                    changed = covariance + (tried**2 - sds[name] ** 2) * share
                    cost = _cost(changed, rest) + _prior_cost(tried, first[name])
                    if cost > best - _LEAST_GAIN:
                        break
                    sds[name], best, covariance = tried, cost, changed
    return sds


def gpu_effects(steps: Steps, sds: Sds) -> dict[str, Any]:
    """The posterior of the effects of GPUs: of those measured, of others of their architecture, and of all others."""
    settled = steps.settle(sds)
    rows = steps.rows
    precisions = sorted(set(rows.precision))
    cells = sorted(set(zip(rows.gpu, rows.precision, strict=True)))
    compute_capability = {gpu: _architecture(gpu) for gpu, _ in cells}
    architectures = sorted(set(compute_capability.values()))

    def of(gpu: str, architecture: str, precision: str) -> dict[str, list[float]]:
        asked = {"gpu": gpu, "architecture": architecture, "precision": precision, "cell": f"{gpu}|{precision}"}
        mean, sd = zip(*(_posterior(steps, sds, settled, part, asked) for part in PARTS), strict=True)
        return {"mean": [round(m, 4) for m in mean], "sd": [round(s, 4) for s in sd]}

    gpus: dict[str, Any] = {}
    for gpu, precision in cells:
        gpus.setdefault(gpu, {})[precision] = of(gpu, compute_capability[gpu], precision)
    return {
        "gpus": gpus,
        "architectures": {a: {p: of("", a, p) for p in precisions} for a in architectures},
        "unmeasured": {p: of("", "", p) for p in ("fp32", "tf32", "half")},
    }


def _posterior(
    steps: Steps, sds: Sds, settled: tuple[Array, Any, Array], part: str, asked: Mapping[str, str]
) -> tuple[float, float]:
    """Mean and standard deviation of the sum of the GPU effects on a part. What all GPUs share is in the mean only: a
    step's software and job have it in their own effects."""
    counts, factor, weights = settled
    at = PARTS.index(part)
    across, own, prior = np.zeros(len(steps.rows)), np.zeros(len(steps.rows)), 0.0
    for name, (column, on, _) in GPU_EFFECTS.items():
        if not PARTS_OF_EFFECT[on][at]:
            continue
        everywhere = np.ones(len(steps.rows))
        same = everywhere if column is None else (steps.rows[column] == asked[column]).to_numpy(float)
        covered = sds[name] ** 2 * same * (np.array(PARTS_OF_EFFECT[on]) @ counts)
        across += covered
        if column is not None:
            own += covered
            prior += sds[name] ** 2
    variance = prior - float(own @ cho_solve(factor, own))
    return float(across @ weights), math.sqrt(max(variance, 1e-6))


def runtime_effects(sds: Mapping[str, Sds]) -> list[dict[str, Any]]:
    """The effects as the predictor reads them, by knowledge: a job to be predicted is its own family."""
    merged: dict[tuple[tuple[str, ...], str], dict[str, float]] = {}
    for name, (labels, on, _) in JOB_EFFECTS.items():
        key = (tuple("job" if label == "family" else label for label in labels), on)
        for knowledge, found in sds.items():
            by = merged.setdefault(key, {})
            by[knowledge] = math.hypot(by.get(knowledge, 0.0), found[name])
    return [
        {"labels": list(labels), "on": on, "sd": {k: round(sd, 4) for k, sd in by.items()}}
        for (labels, on), by in merged.items()
    ]


def _architecture(gpu: str) -> str:
    return default_catalog().gpu(gpu).compute_capability or ""
