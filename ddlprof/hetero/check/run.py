"""Starts the processes of a check and puts what they measured beside what was predicted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddlprof.base.cores import available_cores
from ddlprof.base.errors import UserError
from ddlprof.hetero.check.local import BY_SPEED, CORES, EVEN, Model, problem, speeds_of
from ddlprof.hetero.check.ranks import RESULT, SPEC
from ddlprof.hetero.problem import Problem, Strategy
from ddlprof.hetero.simulation import simulate

ROUNDS = 20
SLOW = 3
"""How many times the slow process computes everything."""
GRADIENT_BYTES = 4 * 2**20
"""All gradients, scaled: an all-reduce takes some milliseconds here, as it does of the real ones on a network."""
BUSY_S = 0.08
BATCH = 64
TOLERANCE = 0.2
"""How far a prediction may be off, as a share of what was measured."""
_LEAST_BYTES = 4096
_PATIENCE_S = 300


@dataclass(frozen=True)
class Checked:
    """One split on real processes."""

    name: str
    strategy: Strategy
    predicted_s: float
    """By what was measured of both processes and the link around each round: the median of the rounds."""
    measured_s: float
    """The median of the rounds."""
    ratio: float
    """Predicted over measured, the median of the rounds."""


@dataclass(frozen=True)
class Check:
    """What was run."""

    slow: int
    rounds: int
    splits: tuple[Checked, ...]
    gain: float
    """How many times as fast the split by speed is as the even one: the median of the rounds."""
    processor_share: float
    """Of the time of computing, that in which the processes had their cores."""

    @property
    def worst(self) -> float:
        """How far a prediction is off at most, as a share of what was measured."""
        return max(abs(each.ratio - 1) for each in self.splits)

    @property
    def holds(self) -> bool:
        """Whether every prediction is as near as it has to be."""
        return self.worst <= TOLERANCE

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "worst": self.worst, "holds": self.holds}


def check(planned: Problem, rounds: int = ROUNDS, busy_s: float = BUSY_S) -> Check:
    """Runs a net with the groups of a problem on two processes, and compares. Raises `UserError` where they fail."""
    return compared(measured(planned, rounds, busy_s))


def measured(planned: Problem, rounds: int = ROUNDS, busy_s: float = BUSY_S) -> dict[str, Any]:
    """What the processes wrote: their net, the splits, their speeds and the seconds of each step.

    The fast process computes about `busy_s` seconds for half of a batch. Raises `UserError` where a core is missing or
    a process fails.
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
    log = folder / "log"
    command = [sys.executable, "-m", "ddlprof.hetero.check.ranks"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        started = [
            subprocess.Popen([*command, str(rank), str(folder)], stdout=output, stderr=output, env=environment)
            for rank in range(2)
        ]
        try:
            until = time.monotonic() + _PATIENCE_S
            for process in started:
                process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise UserError(f"--check: the processes were not done after {_PATIENCE_S} s: try again later") from None
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    if any(process.returncode for process in started) or not (folder / RESULT).is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UserError(f"--check: the processes failed: {lines[-1] if lines else 'without a word'}")
    found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return found


def compared(found: dict[str, Any]) -> Check:
    """What is predicted of the splits from the speeds, beside their steps."""
    values = found["model"]
    model = Model(tuple(values["gradient_bytes"]), tuple(values["repeats"]), values["slow"], values["batch"])
    speeds, steps_s = [speeds_of(each) for each in found["speeds"]], found["steps_s"]
    rounds = [problem(model, each) for each in speeds]
    splits = []
    for name, fields in found["strategies"].items():
        strategy = Strategy(tuple(fields["samples"]), tuple(fields["servers"]), fields["by_rank"])
        predicted = [simulate(here, strategy).step_s for here in rounds]
        ratio = median(one / other for one, other in zip(predicted, steps_s[name], strict=True))
        splits.append(Checked(name, strategy, median(predicted), median(steps_s[name]), ratio))
    gain = median(even / by_speed for even, by_speed in zip(steps_s[EVEN], steps_s[BY_SPEED], strict=True))
    processor_share = median(each.processor_share for each in speeds)
    return Check(model.slow, len(steps_s[EVEN]), tuple(splits), gain, processor_share)
