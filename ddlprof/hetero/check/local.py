"""The job on this machine as a problem: what two processes measured of themselves and of the link between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddlprof.hetero.devices import Devices, Machine
from ddlprof.hetero.job import Part, Problem, Work

EVEN, BY_SPEED, PLAN = "even", "by speed", "plan"
"""The splits that are run; the first two with all-reduce."""


@dataclass(frozen=True)
class Model:
    """A net that has the gradients of a job's groups, scaled to this machine, and their shares of computation."""

    gradient_bytes: tuple[int, ...]
    repeats: tuple[int, ...]
    """Products that a group computes."""
    slow: int
    """How many times the slow process computes each of them."""
    batch: int

    @property
    def groups(self) -> tuple[Part, ...]:
        """As a problem has them."""
        whole = sum(self.repeats)
        return tuple(
            Part(f"group {number + 1}", float(size), repeats / whole)
            for number, (size, repeats) in enumerate(zip(self.gradient_bytes, self.repeats, strict=True))
        )


@dataclass(frozen=True)
class Speeds:
    """What the processes measured: seconds of a phase at two numbers of samples, and the line through them."""

    samples: tuple[int, int]
    forward_s: tuple[tuple[float, float], ...]
    """For each process, at the two numbers."""
    backward_s: tuple[tuple[float, float], ...]
    update_s: tuple[float, ...]
    reduced_bytes: tuple[int, int]
    reduced_s: tuple[float, float]
    """An all-reduce of so many bytes."""

    def work(self, device: int, samples: int) -> Work:
        """See `Times`."""
        return Work(
            self._at(self.forward_s[device], samples),
            self._at(self.backward_s[device], samples),
            update_s=self.update_s[device],
        )

    def most(self, device: int) -> int | None:
        """See `Times`."""
        return None

    def _at(self, seconds: Sequence[float], samples: int) -> float:
        (few, many), (short, long) = self.samples, seconds
        each = max((long - short) / (many - few), 0.0)
        return max(short + each * (samples - few), 1e-9)

    @property
    def link(self) -> tuple[float, float]:
        """GB/s and latency of an all-reduce of two, as the simulation counts it: two messages of half the bytes."""
        (few, many), (short, long) = self.reduced_bytes, self.reduced_s
        gb_s = (many - few) / max(long - short, 1e-9) / 1e9
        return gb_s, max(short - few / 1e9 / gb_s, 0.0) / 2


def problem(model: Model, speeds: Speeds) -> Problem:
    """The two processes as machines with one GPU each."""
    gb_s, latency_s = speeds.link
    machines = tuple(Machine(name, 1, gb_s, gb_s) for name in ("fast", f"{model.slow} times slower"))
    return Problem(Devices(machines, latency_s), model.groups, model.batch, speeds)


def speeds_of(values: dict[str, Any]) -> Speeds:
    """From JSON."""
    return Speeds(
        samples=(values["samples"][0], values["samples"][1]),
        forward_s=tuple((each[0], each[1]) for each in values["forward_s"]),
        backward_s=tuple((each[0], each[1]) for each in values["backward_s"]),
        update_s=tuple(values["update_s"]),
        reduced_bytes=(values["reduced_bytes"][0], values["reduced_bytes"][1]),
        reduced_s=(values["reduced_s"][0], values["reduced_s"][1]),
    )
