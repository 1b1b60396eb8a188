"""One estimate of a step from everything known: its parts, steps measured elsewhere, and other jobs on the same GPU.

The logarithm of a step is that of its parts, each times effects: of the GPU, of the software, of the job, of the job on
this GPU, and so on. Effects have learned means and standard deviations; what was measured gives a Gaussian posterior of
all of them together (best linear unbiased prediction, kriging), so that errors that go together count once. The step is
not linear in the effects, because GPU and host overlap: it is made linear around the most probable effects, as in
Gauss-Newton. Robinson, "That BLUP is a good thing", Statistical Science 6 (1991); Rasmussen and Williams, "Gaussian
Processes for Machine Learning" (2006), chapter 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recommender.compute.parts import PARTS, Array, shares, total_s

_ON: dict[str, tuple[float, ...]] = {
    **{name: tuple(float(part == name) for part in PARTS) for name in PARTS},
    "device": (1, 1, 1, 0, 0),
    "mix": (1, -1, 0, 0, 0),
    "host": (0, 0, 0, 1, 1),
}
"""The parts that an effect multiplies; mix: one up, the other down."""
_STEPS = 12
_DAMPING = 0.6
_MOST = 4.0
"""Gauss-Newton: steps, how far each goes, and the largest logarithm of an effect."""


@dataclass(frozen=True)
class Effect:
    """A factor that all steps with the same value of some labels share."""

    labels: tuple[str, ...]
    on: str
    """A key of `_ON`."""
    sd: Mapping[str, float]
    """Standard deviation of its logarithm, by what the parts are made of: `operators`, `flops`, `steps`."""


@dataclass(frozen=True)
class GpuEffect:
    """What published steps say of one GPU at one class of precision: means and standard deviations of logarithms."""

    mean: Array
    """(5,): by part."""
    sd: Array
    """(5,): the host's two are one effect."""


@dataclass(frozen=True)
class Learned:
    """The content of `coefficients.json`, written by `scripts/fit/compute.py`."""

    effects: tuple[Effect, ...]
    gpus: Mapping[tuple[str, str], GpuEffect]
    """By GPU and class of precision."""
    architectures: Mapping[tuple[str, str], GpuEffect]
    """By compute capability and class of precision, for GPUs that nobody measured."""
    unmeasured: Mapping[str, GpuEffect]
    """By class of precision, for all others."""
    probed_sd: float
    """The share of the standard deviations of `unmeasured` that is left once the GPU was probed."""
    batch_range: float
    """Factor e of batches over which effects of a batch fade."""
    widths: Mapping[str, float]
    """The factor of intervals, by what was known: from errors on whole groups left out."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Learned:
        """Reads what `scripts/fit/compute.py` writes."""

        def effect(row: Mapping[str, Any]) -> Effect:
            return Effect(tuple(row["labels"]), row["on"], {name: float(sd) for name, sd in row["sd"].items()})

        def of_gpu(row: Mapping[str, Any]) -> GpuEffect:
            return GpuEffect(np.array(row["mean"], dtype=float), np.array(row["sd"], dtype=float))

        def nested(name: str) -> dict[tuple[str, str], GpuEffect]:
            return {(key, kind): of_gpu(row) for key, by in data[name].items() for kind, row in by.items()}

        return cls(
            tuple(effect(row) for row in data["effects"]),
            nested("gpus"), nested("architectures"),
            {kind: of_gpu(row) for kind, row in data["unmeasured"].items()},
            float(data["probed_sd"]), float(data["batch_range"]),
            {name: float(value) for name, value in data["widths"].items()},
        )  # fmt: skip

    def of(self, gpu_model: str, architecture: str, kind: str, probed: bool) -> tuple[GpuEffect, bool]:
        """The effects of a GPU at a class of precision, and whether published steps were measured on it."""
        kind = kind if kind in self.unmeasured else "half"
        general = self.unmeasured[kind]
        if probed:
            return GpuEffect(general.mean, general.sd * self.probed_sd), True
        known = self.gpus.get((gpu_model, kind))
        return (known, True) if known else (self.architectures.get((architecture, kind), general), False)


@dataclass(frozen=True)
class Point:
    """A step that was measured or is asked for."""

    parts: Array
    """(5,): seconds by part, before any correction."""
    gpu: GpuEffect
    labels: Mapping[str, str]
    """job, gpu, precision, batch, software, ...: what `Effect.labels` names."""
    batch: int
    knowledge: str
    """What the parts are made of: a key of `Effect.sd`."""
    log_s: float = 0.0
    """The logarithm of the measured seconds."""
    noise: float = 0.0
    """Its standard deviation: two runs differ so much, or it is only an upper bound."""
    extra_sd: float = 0.0
    """What is not known of the parts, as a standard deviation of the logarithm that is the job's."""


@dataclass(frozen=True)
class Predicted:
    """The logarithm of seconds and its standard deviation."""

    log_s: float
    sd: float
    prior_sd: float
    """The same before anything was measured."""


class _Points:
    """Points as arrays, with the parts they have under the effects believed so far."""

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
        self.same_gpu = np.array([p.labels["gpu"] for p in points], dtype=object)
        self.same_cell = np.array([f"{p.labels['gpu']}|{p.labels['precision']}" for p in points], dtype=object)
        self.logs = self.prior.copy()

    def shares(self) -> Array:
        return shares(self.parts * np.exp(self.logs))


class Posterior:
    """What is believed after the measured steps; the order of these does not matter."""

    def __init__(self, learned: Learned, measured: Sequence[Point]) -> None:
        self._learned, self._effects = learned, learned.effects
        self._known = _Points(measured, self._effects)
        self._weights = np.zeros(len(measured))
        if not measured:
            return
        log_s = np.array([p.log_s for p in measured])
        noise = np.diag([p.noise**2 for p in measured])
        for step in range(_STEPS):
            known = self._known
            counts = known.shares()
            expected = np.log(total_s(known.parts * np.exp(known.logs))) - (counts * (known.logs - known.prior)).sum(0)
            self._counts = counts
            self._covariance = self._between(known, counts, known, counts) + noise
            self._weights = np.linalg.solve(self._covariance, log_s - expected)
            if step < _STEPS - 1:
                aim = self._believed(known)
                known.logs += _DAMPING * (np.clip(aim, known.prior - _MOST, known.prior + _MOST) - known.logs)

    def at(self, asked: Point) -> Predicted:
        """The mean of the logarithm and its standard deviation."""
        there = _Points([asked], self._effects)
        if len(self._weights):
            there.logs = self._believed(there)
        counts = there.shares()
        prior = float(self._between(there, counts, there, counts)[0, 0])
        mean = float(np.log(total_s(there.parts * np.exp(there.logs)))[0])
        if not len(self._weights):
            return Predicted(mean, math.sqrt(prior), math.sqrt(prior))
        across = self._between(there, counts, self._known, self._counts)[0]
        mean += float(across @ self._weights) - float((counts * (there.logs - there.prior)).sum())
        variance = prior - float(across @ np.linalg.solve(self._covariance, across))
        return Predicted(mean, math.sqrt(max(variance, 1e-8)), math.sqrt(prior))

    def _believed(self, points: _Points) -> Array:
        """The logarithms of all effects on the parts of points: their priors and what was measured. Shape (5, n)."""
        known, weights = self._known, self._weights
        logs = points.prior.copy()
        for i, effect in enumerate(self._effects):
            on = np.array(_ON[effect.on])
            same = points.keys[i][:, None] == known.keys[i][None, :]
            by_sd = known.sds[i] * (on @ self._counts) * weights
            logs += on[:, None] * (points.sds[i] * ((same * self._fading(effect, points, known)) @ by_sd))
        at_gpu = points.same_gpu[:, None] == known.same_gpu[None, :]
        at_cell = points.same_cell[:, None] == known.same_cell[None, :]
        for rows, same in _gpu_rows(at_gpu, at_cell):
            by_sd = (known.gpu_sd[rows] * self._counts[rows]).sum(0) * weights
            logs[rows] += points.gpu_sd[rows] * (same @ by_sd)
        return logs

    def _between(self, a: _Points, counts_a: Array, b: _Points, counts_b: Array) -> Array:
        """The covariance of the logarithms of steps. Shape (points of a, points of b)."""
        found: Array = np.zeros((len(a.points), len(b.points)))
        for i, effect in enumerate(self._effects):
            on = np.array(_ON[effect.on])
            same = a.keys[i][:, None] == b.keys[i][None, :]
            loads = np.outer(a.sds[i] * (on @ counts_a), b.sds[i] * (on @ counts_b))
            found += same * self._fading(effect, a, b) * loads
        at_gpu = a.same_gpu[:, None] == b.same_gpu[None, :]
        at_cell = a.same_cell[:, None] == b.same_cell[None, :]
        for rows, same in _gpu_rows(at_gpu, at_cell):
            load_a, load_b = (a.gpu_sd[rows] * counts_a[rows]).sum(0), (b.gpu_sd[rows] * counts_b[rows]).sum(0)
            found += same * np.outer(load_a, load_b)
        jobs_a, jobs_b = ([p.labels["job"] for p in points.points] for points in (a, b))
        extra = np.outer([p.extra_sd for p in a.points], [p.extra_sd for p in b.points])
        found += extra * (np.array(jobs_a, dtype=object)[:, None] == np.array(jobs_b, dtype=object)[None, :])
        return found

    def _fading(self, effect: Effect, a: _Points, b: _Points) -> Array | float:
        """How alike batches are, for effects of a batch: 1 for equal ones."""
        if "near" not in effect.labels:
            return 1.0
        away: Array = np.abs(a.log_batch[:, None] - b.log_batch[None, :])
        fading: Array = np.exp(-away / self._learned.batch_range)
        return fading


def _gpu_rows(at_gpu: Any, at_cell: Any) -> tuple[tuple[list[int], Any], ...]:
    """The parts that one effect of a GPU is on: computing by precision, the host's two together."""
    return ([0], at_cell), ([1], at_gpu), ([2], at_gpu), ([3, 4], at_gpu)
