"""One estimate of a step from all evidence: its parts, steps measured elsewhere, and other jobs on the same GPU.

The seconds of each part are multiplied by effects: of the GPU, of the software, of the job, of the job on this GPU, and
so on. The logarithms of effects have learned means and standard deviations; measurements give a joint Gaussian
posterior of them (best linear unbiased prediction, kriging), so that correlated errors count once. As GPU and host
overlap, the step is not linear in the effects: it is linearised around the most probable effects, as in Gauss-Newton.
Robinson, "That BLUP is a good thing", Statistical Science 6 (1991); Rasmussen and Williams, "Gaussian Processes for
Machine Learning" (2006), chapter 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlprof.base.typed import decode
from ddlprof.recommender.compute.step_parts import PARTS, Array, shares, total_s

PARTS_OF_EFFECT: dict[str, tuple[float, ...]] = {
    **{name: tuple(float(part == name) for part in PARTS) for name in PARTS},
    "device": (1, 1, 1, 0, 0),
    "mix": (1, -1, 0, 0, 0),
    "host": (0, 0, 0, 1, 1),
}
"""The sign with which each effect changes the logarithm of each part. `mix` raises one part and lowers another."""
_GPU_ROWS = ([0], [1], [2], [3, 4])
"""The parts that each effect of a GPU changes: compute (of one precision), memory, fixed, and both parts of the
host."""
_STEPS = 12
_DAMPING = 0.6
_MOST = 4.0
"""Limits of Gauss-Newton: the number of steps, the size of each step, and the largest logarithm of an effect."""


@dataclass(frozen=True)
class Effect:
    """A factor that is shared by all steps with the same values of some labels."""

    labels: tuple[str, ...]
    on: str
    """A key of `PARTS_OF_EFFECT`."""
    sd: Mapping[str, float]
    """The standard deviation of its logarithm, by the source of the parts: `operators`, `flops`, `steps`."""


@dataclass(frozen=True)
class GpuEffect:
    """The effects of one GPU at one class of precision, from published steps.

    Means and standard deviations of logarithms.
    """

    mean: Array
    """(5,): by part."""
    sd: Array
    """(5,): by part; the two of the host are one effect."""


@dataclass(frozen=True)
class LearnedPart:
    """A part of `coefficients.json`, written by `scripts/fit/compute.py`."""

    effects: tuple[Effect, ...]
    gpus: Mapping[tuple[str, str], GpuEffect]
    """By GPU and class of precision."""
    architectures: Mapping[tuple[str, str], GpuEffect]
    """By compute capability and class of precision, for GPUs that were not measured."""
    unmeasured: Mapping[str, GpuEffect]
    """By class of precision, for GPUs of unknown architecture."""
    probed_sd: float
    """The share of the standard deviations of `unmeasured` that is left once the GPU was probed."""
    batch_range: float
    """The distance in the logarithm of the batch over which effects of a batch fade by a factor of e."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LearnedPart:
        """Reads what `scripts/fit/compute.py` writes."""

        def of_gpu(row: Mapping[str, Any]) -> GpuEffect:
            return GpuEffect(np.array(row["mean"], dtype=float), np.array(row["sd"], dtype=float))

        def nested(name: str) -> dict[tuple[str, str], GpuEffect]:
            return {(key, kind): of_gpu(row) for key, by in data[name].items() for kind, row in by.items()}

        return cls(
            decode(tuple[Effect, ...], data["effects"]),
            nested("gpus"), nested("architectures"),
            {kind: of_gpu(row) for kind, row in data["unmeasured"].items()},
            float(data["probed_sd"]), float(data["batch_range"]),
        )  # fmt: skip

    def of(self, gpu_model: str, architecture: str, kind: str, probed: bool) -> GpuEffect:
        """The effects of a GPU at a class of precision."""
        kind = kind if kind in self.unmeasured else "half"
        general = self.unmeasured[kind]
        if probed:
            return GpuEffect(general.mean, general.sd * self.probed_sd)
        known = self.gpus.get((gpu_model, kind))
        return known or self.architectures.get((architecture, kind), general)


@dataclass(frozen=True)
class Point:
    """A step that was measured or is to be predicted."""

    parts: Array
    """(5,): seconds by part, before any correction."""
    gpu: GpuEffect
    labels: Mapping[str, str]
    """The values of the labels that `Effect.labels` names: job, gpu, precision, batch, software, ..."""
    batch: int
    knowledge: str
    """The source of the parts: a key of `Effect.sd`."""
    log_s: float = 0.0
    """The logarithm of the measured seconds."""
    noise: float = 0.0
    """The standard deviation of `log_s`, from repetition; larger if the time is only an upper bound."""
    extra_sd: float = 0.0
    """The uncertainty of the parts, as a standard deviation of the logarithm that is common to the points of a job."""


@dataclass(frozen=True)
class Predicted:
    """The logarithm of the seconds and its standard deviation."""

    log_s: float
    sd: float
    prior_sd: float
    """The standard deviation without any measurement."""


class _Points:
    """Points as arrays, with their parts under the current estimate of the effects."""

    def __init__(self, points: Sequence[Point], effects: Sequence[Effect]) -> None:
        self.points = points
        self.parts = np.array([p.parts for p in points]).reshape(-1, len(PARTS)).T
        self.prior = np.array([p.gpu.mean for p in points]).reshape(-1, len(PARTS)).T
        self.gpu_sd = np.array([p.gpu.sd for p in points]).reshape(-1, len(PARTS)).T
        self.log_batch = np.log(np.array([p.batch for p in points], dtype=float))
        self.keys = [
            np.array(["|".join(p.labels.get(name, "") for name in effect.labels) for p in points], dtype=object)
            for effect in effects
        ]
        self.sds = [np.array([effect.sd[p.knowledge] for p in points]) for effect in effects]
        self.gpus = np.array([p.labels["gpu"] for p in points], dtype=object)
        self.cells = np.array([f"{p.labels['gpu']}|{p.labels['precision']}" for p in points], dtype=object)
        self.jobs = np.array([p.labels["job"] for p in points], dtype=object)
        self.extra_sd = np.array([p.extra_sd for p in points])
        self.logs = self.prior.copy()

    def shares(self) -> Array:
        return shares(self.parts * np.exp(self.logs))


class Posterior:
    """The posterior of the effects, given the measured steps in any order."""

    def __init__(self, learned: LearnedPart, measured: Sequence[Point]) -> None:
        self._learned, self._effects = learned, learned.effects
        self._known = known = _Points(measured, self._effects)
        self._weights = np.zeros(len(measured))
        if not measured:
            return
        log_s = np.array([p.log_s for p in measured])
        noise = np.diag([p.noise**2 for p in measured])
        alike = self._alike(known, known)
        for step in range(_STEPS):
            counts = known.shares()
            expected = np.log(total_s(known.parts * np.exp(known.logs))) - (counts * (known.logs - known.prior)).sum(0)
            self._counts = counts
            self._covariance = self._between(known, counts, known, counts, alike) + noise
            self._weights = np.linalg.solve(self._covariance, log_s - expected)
            if step < _STEPS - 1:
                aim = self._believed(known, alike)
                known.logs += _DAMPING * (np.clip(aim, known.prior - _MOST, known.prior + _MOST) - known.logs)

    def at(self, asked: Point) -> Predicted:
        """The mean of the logarithm of seconds and its standard deviation."""
        there = _Points([asked], self._effects)
        alike = self._alike(there, self._known)
        if len(self._weights):
            there.logs = self._believed(there, alike)
        counts = there.shares()
        prior = float(self._between(there, counts, there, counts, self._alike(there, there))[0, 0])
        mean = float(np.log(total_s(there.parts * np.exp(there.logs)))[0])
        if not len(self._weights):
            return Predicted(mean, math.sqrt(prior), math.sqrt(prior))
        across = self._between(there, counts, self._known, self._counts, alike)[0]
        mean += float(across @ self._weights) - float((counts * (there.logs - there.prior)).sum())
        variance = prior - float(across @ np.linalg.solve(self._covariance, across))
        return Predicted(mean, math.sqrt(max(variance, 1e-8)), math.sqrt(prior))

    def _alike(self, a: _Points, b: _Points) -> list[Array]:
        """How much of each effect two points share, from 0 to 1: for every effect, then the rows of `_GPU_ROWS`, then
        the job. Each has the shape (points of a, points of b)."""
        away = np.abs(a.log_batch[:, None] - b.log_batch[None, :])
        fading = np.exp(-away / self._learned.batch_range)
        found = []
        for effect, mine, other in zip(self._effects, a.keys, b.keys, strict=True):
            same = (mine[:, None] == other[None, :]).astype(float)
            found.append(same * fading if "near" in effect.labels else same)
        for mine, other in ((a.cells, b.cells), (a.gpus, b.gpus), (a.gpus, b.gpus), (a.gpus, b.gpus), (a.jobs, b.jobs)):
            found.append((mine[:, None] == other[None, :]).astype(float))
        return found

    def _believed(self, points: _Points, alike: list[Array]) -> Array:
        """The posterior mean of the logarithms of all effects on the parts of points. Shape (5, n)."""
        known, weights = self._known, self._weights
        logs: Array = points.prior.copy()
        for i, effect in enumerate(self._effects):
            on = np.array(PARTS_OF_EFFECT[effect.on])
            by_sd = known.sds[i] * (on @ self._counts) * weights
            logs += on[:, None] * (points.sds[i] * (alike[i] @ by_sd))
        for rows, same in zip(_GPU_ROWS, alike[len(self._effects) :], strict=False):
            by_sd = (known.gpu_sd[rows] * self._counts[rows]).sum(0) * weights
            logs[rows] += points.gpu_sd[rows] * (same @ by_sd)
        return logs

    def _between(self, a: _Points, counts_a: Array, b: _Points, counts_b: Array, alike: list[Array]) -> Array:
        """The covariance of the logarithms of steps. Shape (points of a, points of b)."""
        found: Array = np.outer(a.extra_sd, b.extra_sd) * alike[-1]
        for i, effect in enumerate(self._effects):
            on = np.array(PARTS_OF_EFFECT[effect.on])
            found += alike[i] * np.outer(a.sds[i] * (on @ counts_a), b.sds[i] * (on @ counts_b))
        for rows, same in zip(_GPU_ROWS, alike[len(self._effects) :], strict=False):
            load_a, load_b = (a.gpu_sd[rows] * counts_a[rows]).sum(0), (b.gpu_sd[rows] * counts_b[rows]).sum(0)
            found += same * np.outer(load_a, load_b)
        return found
