"""How much slower a job of a trace is when it is spread: measured slowdowns by model, GPU and number of GPUs.

A trace gives a measured step of each job, which is assumed to be that of the best placement on the simulated cluster.
What a worse placement adds to it counts as exposed communication. The communication of the best placement is not known
and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import POSITIVE, Interval, Length, decode, parse_json, read_text
from ddlprof.base.units import count
from ddlprof.extensions.cluster.jobs import Job, model_key
from ddlprof.extensions.cluster.machines import Cluster, Level, Placement
from ddlprof.extensions.cluster.speeds import StepTime
from ddlprof.recommender.estimate import Z80

SHIPPED = Path(__file__).with_name("penalties.json")
MAX_FILE_BYTES = 4 * 2**20
_LEVELS = {"rack": Level.RACK, "network": Level.NETWORK}
Name = Annotated[str, Length(1, 200)]


@dataclass(frozen=True)
class ModelPenalties:
    """The slowdowns of one model with one batch."""

    gpu_model: Name
    model: Name
    gpus: Annotated[tuple[Annotated[int, Interval(2, 1_000_000)], ...], Length(1, 100)]
    """Numbers of GPUs, ascending."""
    slowdown: Annotated[tuple[Annotated[float, POSITIVE], ...], Length(1, 100)]
    """For each number, the seconds of a step on several machines divided by those on as few machines as possible, as
    measured: values below 1 are noise."""
    batch_per_gpu: Annotated[int, Interval(1, 10**9)] | None = None
    level: Literal["rack", "network"] | None = None
    """How far apart the machines were; None: this is not known, and the row counts for both levels."""


@dataclass(frozen=True)
class File:
    """The content of a file of penalties."""

    penalties: Annotated[tuple[ModelPenalties, ...], Length(1, 100_000)]


class Penalty(NamedTuple):
    """A factor of at least 1, with its 80 % interval."""

    factor: float
    low: float
    high: float


ONE = Penalty(1.0, 1.0, 1.0)


class Penalties:
    """Slowdowns for any model and number of GPUs: those of the model itself if it was measured, else those of all
    models."""

    def __init__(self, measured: Iterable[ModelPenalties]) -> None:
        self._by_gpu: dict[str, list[ModelPenalties]] = {}
        for row in measured:
            self._by_gpu.setdefault(row.gpu_model, []).append(row)
        rows = [row for rows in self._by_gpu.values() for row in rows]
        below = [math.log(factor) ** 2 for row in rows for factor in row.slowdown if factor < 1]
        # No placement is faster than the best one; values below 1 show how much measurements scatter.
        self._noise_sd = math.sqrt(sum(below) / len(below)) if below else 0.0

    def of(self, gpu_model: str, model: str | None, batch_per_gpu: float, gpus: int, level: Level) -> Penalty:
        """The slowdown of a placement against one machine.

        Numbers of GPUs between those measured are interpolated; beyond them the last one holds. The interval of a
        measured model is the scatter of the measurements, that of any other model the spread over all models.
        Raises `UserError` for a GPU that was not measured.
        """
        if level == Level.MACHINE or gpus < 2:
            return ONE
        rows = [row for row in self._rows(gpu_model) if row.level is None or _LEVELS[row.level] == level]
        own = [row for row in rows if model is not None and model_key(row.model) == model_key(model)]
        if own:
            row = min(own, key=lambda row: abs(math.log((row.batch_per_gpu or batch_per_gpu) / batch_per_gpu)))
            factor, sd = _at(row, gpus), self._noise_sd
            return _clipped(factor, factor * math.exp(-Z80 * sd), factor * math.exp(Z80 * sd))
        if not rows:
            raise UserError(f"penalties: nothing was measured on {gpu_model} at the level {level.name.lower()}")
        low, middle, high = map(float, np.quantile([_at(row, gpus) for row in rows], (0.1, 0.5, 0.9)))
        return _clipped(middle, low, high)

    def _rows(self, gpu_model: str) -> list[ModelPenalties]:
        for known, rows in self._by_gpu.items():
            if model_key(known) in model_key(gpu_model):
                return rows
        there_are = ", ".join(sorted(self._by_gpu))
        raise UserError(f"penalties: none are known of {gpu_model}, only of {there_are}; give a file with --penalties")


class PenalisedSpeeds:
    """The step of a trace on its best placement, slowed down on others."""

    def __init__(self, cluster: Cluster, penalties: Penalties, gpu_model: str = "V100") -> None:
        """`gpu_model` is assumed for machines whose GPU is not known."""
        self._cluster, self._penalties, self._gpu_model = cluster, penalties, gpu_model
        self._known: dict[tuple[str | None, float, Placement], Penalty] = {}

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """The measured seconds of an update times the slowdown. Raises UserError for other GPUs or another batch."""
        if job.step_s is None or placement.gpus != job.gpus or batch != job.batch:
            raise UserError(
                f"job {job.job_id}: its trace tells one step time at most, on {count(job.gpus, 'GPU')} with batch"
                f" {job.batch}; none is known on {count(placement.gpus, 'GPU')} with batch {batch}"
            )
        key = (job.model, batch / placement.gpus, placement)
        if key not in self._known:
            self._known[key] = self._slowdown(*key)
        slower, best_s = self._known[key], job.step_s
        step_s = best_s * slower.factor
        return StepTime(step_s, best_s * slower.low, best_s * slower.high, step_s - best_s)

    def _slowdown(self, model: str | None, batch_per_gpu: float, placement: Placement) -> Penalty:
        """The slowdown relative to the best placement on this cluster, which may itself take several machines."""
        slowest = ONE
        for gpu_model in placement.gpu_models:
            best = self._cluster.packed(placement.gpus, gpu_model)
            asked = (gpu_model or self._gpu_model, model, batch_per_gpu, placement.gpus)
            there, least = self._penalties.of(*asked, placement.level), self._penalties.of(*asked, best.level).factor
            slower = _clipped(there.factor / least, there.low / least, there.high / least)
            slowest = max(slowest, slower)
        return slowest


def read_penalties(path: Path) -> Penalties:
    """Reads a file of the form of `penalties.json`. Raises `UserError`, naming the file and the field."""
    with naming(path):
        found = decode(File, parse_json(read_text(path, MAX_FILE_BYTES)))
    for number, row in enumerate(found.penalties):
        if len(row.gpus) != len(row.slowdown) or list(row.gpus) != sorted(set(row.gpus)):
            raise UserError(f"{path}: penalties[{number}]: expected ascending gpus and as many slowdowns")
    return Penalties(found.penalties)


@lru_cache(maxsize=1)
def shipped_penalties() -> Penalties:
    """The slowdowns that Gavel measured: five models on K80, P100 and V100, up to 8 GPUs."""
    return read_penalties(SHIPPED)


def _at(row: ModelPenalties, gpus: int) -> float:
    """The slowdown at a number of GPUs: linear in its logarithm, from 1 on one GPU, and no more beyond the last."""
    return float(np.interp(math.log(gpus), np.log([1, *row.gpus]), np.maximum([1.0, *row.slowdown], 1.0)))


def _clipped(factor: float, low: float, high: float) -> Penalty:
    return Penalty(max(factor, 1.0), max(low, 1.0), max(high, 1.0))
