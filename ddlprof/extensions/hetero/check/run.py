"""Checks predictions of a plan on this machine: two processes train with several splits, and steps are compared.

The processes run `worker.py`. They measure their own speeds and that of the link between them. The job on this machine
is then a `Problem` whose steps are predicted like any other's.
"""

from __future__ import annotations

import json
import tempfile
from bisect import bisect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddlprof.base.cores import available_cores
from ddlprof.base.errors import UserError
from ddlprof.base.typed import decode
from ddlprof.base.worker_processes import WorkerFailed, WorkerProcesses
from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.problem import DeviceWork, GradientBucket, Problem, SplitStrategy, Taken
from ddlprof.extensions.hetero.simulation import simulate

EVEN, BY_SPEED, PLAN = "even", "by speed", "plan"
"""The splits that are run. The first two use all-reduce."""
CORES = 2
"""The cores that are needed: one for each process."""


@dataclass(frozen=True)
class Model:
    """A net that has a job's groups of gradients, scaled to this machine, and their shares of computation."""

    gradient_bytes: tuple[int, ...]
    repeats: tuple[int, ...]
    """The number of products that each group computes."""
    slow: int
    """How many times the slow process computes each product."""
    batch: int

    @property
    def groups(self) -> tuple[GradientBucket, ...]:
        """The groups in the form that a problem has."""
        whole = sum(self.repeats)
        return tuple(
            GradientBucket(f"group {number + 1}", float(size), repeats / whole)
            for number, (size, repeats) in enumerate(zip(self.gradient_bytes, self.repeats, strict=True))
        )


@dataclass(frozen=True)
class MeasuredSpeeds:
    """What the processes measured without knowing any split: their own speeds, and that of the link.

    Seconds of each phase were measured at some numbers of samples, between which they are interpolated.
    """

    samples: tuple[int, ...]
    """The numbers of samples: at least two, ascending."""
    forward_s: tuple[tuple[float, ...], ...]
    """For each process, the seconds at these numbers."""
    backward_s: tuple[tuple[float, ...], ...]
    update_s: tuple[float, ...]
    reduced_bytes: tuple[int, int]
    reduced_s: tuple[float, float]
    """Bytes of an all-reduce, and its seconds if it is one of several under way."""
    taken_s: tuple[Taken, Taken]
    """The processor time that exchanging so many bytes takes from computing."""
    processor_share: float
    """The share of the time of computing in which the processes had their cores; below 1, other work used them."""

    def work(self, device: int, samples: int) -> DeviceWork:
        """See `Times`."""
        return DeviceWork(
            self._at(self.forward_s[device], samples),
            self._at(self.backward_s[device], samples),
            update_s=self.update_s[device],
        )

    def most(self, device: int) -> int | None:
        """See `Times`."""
        return None

    def _at(self, seconds: Sequence[float], samples: int) -> float:
        """The seconds at a number of samples, by linear inter- or extrapolation."""
        above = min(max(bisect(self.samples, samples), 1), len(self.samples) - 1)
        (few, many), (short, long) = self.samples[above - 1 : above + 1], seconds[above - 1 : above + 1]
        each = max((long - short) / (many - few), 0.0)
        return max(short + each * (samples - few), 1e-9)

    def taken(self, size: float) -> Taken:
        """The time that exchanging so many bytes takes from computing."""
        few, many = self.reduced_bytes
        share = (size - few) / (many - few)
        return Taken(*(max(low + share * (high - low), 0.0) for low, high in zip(*self.taken_s, strict=True)))

    @property
    def link(self) -> tuple[float, float]:
        """GB/s and latency of an all-reduce of two, as the simulation defines it: two messages of half the bytes."""
        (few, many), (short, long) = self.reduced_bytes, self.reduced_s
        gb_s = (many - few) / max(long - short, 1e-9) / 1e9
        return gb_s, max(short - few / 1e9 / gb_s, 0.0) / 2


def problem(model: Model, speeds: MeasuredSpeeds) -> Problem:
    """The two processes as machines with one GPU each."""
    gb_s, latency_s = speeds.link
    machines = tuple(GpuNode(name, 1, gb_s, gb_s) for name in ("fast", f"{model.slow} times slower"))
    taken_s = tuple(speeds.taken(group.gradient_bytes) for group in model.groups)
    return Problem(Devices(machines, latency_s), model.groups, model.batch, speeds, taken_s)


SPEC, RESULT = "spec.json", "result.json"
"""The file that tells the processes what to do, and the file in which they return measurements."""
ROUNDS = 20
SLOW = 3
"""How many times the slow process computes everything."""
GRADIENT_BYTES = 4 * 2**20
"""The bytes of all gradients after scaling: an all-reduce takes milliseconds here, as that of a real job on a
network."""
BUSY_S = 0.08
BATCH = 64
TOLERANCE = 0.2
"""The largest accepted error of a prediction, as a share of what was measured."""
_LEAST_BYTES = 4096
_TIMEOUT_S = 300


@dataclass(frozen=True)
class CheckedSplit:
    """One split on real processes."""

    name: str
    strategy: SplitStrategy
    predicted_s: float
    """The predicted step, from what was measured around each round: the median of the rounds."""
    measured_s: float
    """The measured step: the median of the rounds."""
    ratio: float
    """Predicted over measured step: the median of the rounds."""


@dataclass(frozen=True)
class CheckResult:
    """What was run."""

    slow: int
    rounds: int
    splits: tuple[CheckedSplit, ...]
    gain: float
    """How many times as fast the split by speed is as the even split: the median of the rounds."""
    processor_share: float
    """The share of the time of computing in which the processes had their cores."""

    @property
    def worst(self) -> float:
        """The largest error of a prediction, as a share of what was measured."""
        return max(abs(each.ratio - 1) for each in self.splits)

    @property
    def holds(self) -> bool:
        """Whether all predictions are within `TOLERANCE`."""
        return self.worst <= TOLERANCE

    def values(self) -> dict[str, Any]:
        """The values for JSON."""
        return {**asdict(self), "worst": self.worst, "holds": self.holds}


def check(planned: Problem, rounds: int = ROUNDS, busy_s: float = BUSY_S) -> CheckResult:
    """Runs a net with the groups of a problem on two processes, and compares. Raises `UserError` if they fail."""
    return compared(measured(planned, rounds, busy_s))


def measured(planned: Problem, rounds: int = ROUNDS, busy_s: float = BUSY_S) -> dict[str, Any]:
    """What the processes wrote: their net, the splits, their speeds and the seconds of each step.

    The fast process computes about `busy_s` seconds for half of a batch. Raises `UserError` if there are too few cores
    or a process fails.
    """
    if (available_cores() or 1) < CORES:
        raise UserError("--check: needs two processor cores, one for each process, and there is one")
    whole = sum(group.gradient_bytes for group in planned.groups) or 1.0
    spec = {
        "gradient_bytes": [
            max(int(group.gradient_bytes / whole * GRADIENT_BYTES), _LEAST_BYTES) for group in planned.groups
        ],
        "shares": [group.share for group in planned.groups],
        "slow": SLOW, "batch": BATCH, "busy_s": busy_s, "rounds": rounds,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ddlprof-plan-") as folder:
        return _run(Path(folder), spec)


def _run(folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
    (folder / SPEC).write_text(json.dumps(spec), encoding="utf-8")
    arguments = [[str(rank), str(folder)] for rank in range(2)]
    environment = {"OMP_NUM_THREADS": "1"}
    with WorkerProcesses("ddlprof.extensions.hetero.check.worker", arguments, environment, folder / "log") as workers:
        try:
            workers.wait(_TIMEOUT_S)
            found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        except TimeoutError:
            raise UserError(f"--check: the processes were not done after {_TIMEOUT_S} s: try again later") from None
        except (WorkerFailed, FileNotFoundError):
            raise UserError(f"--check: the processes failed: {workers.last_line() or 'without a word'}") from None
    return found


def compared(found: dict[str, Any]) -> CheckResult:
    """Predicts the splits from the speeds, and puts the measured steps beside the predictions."""
    model, speeds, steps_s = (
        decode(Model, found["model"]),
        decode(list[MeasuredSpeeds], found["speeds"]),
        found["steps_s"],
    )
    rounds = [problem(model, each) for each in speeds]
    splits = []
    for name, fields in found["strategies"].items():
        strategy = decode(SplitStrategy, fields)
        predicted = [simulate(here, strategy).step_s for here in rounds]
        ratio = median(one / other for one, other in zip(predicted, steps_s[name], strict=True))
        splits.append(CheckedSplit(name, strategy, median(predicted), median(steps_s[name]), ratio))
    gain = median(even / by_speed for even, by_speed in zip(steps_s[EVEN], steps_s[BY_SPEED], strict=True))
    processor_share = median(each.processor_share for each in speeds)
    return CheckResult(model.slow, len(steps_s[EVEN]), tuple(splits), gain, processor_share)
