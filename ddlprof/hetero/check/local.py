"""The job on this machine as a problem: what two processes measured of themselves and of the link between them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddlprof.hetero.devices import Devices, GpuNode
from ddlprof.hetero.problem import GradientBucket, Problem, Taken, Work

EVEN, BY_SPEED, PLAN = "even", "by speed", "plan"
"""The splits that are run; the first two with all-reduce."""
CORES = 2
"""One for each process to compute on."""


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
    def groups(self) -> tuple[GradientBucket, ...]:
        """As a problem has them."""
        whole = sum(self.repeats)
        return tuple(
            GradientBucket(f"group {number + 1}", float(size), repeats / whole)
            for number, (size, repeats) in enumerate(zip(self.gradient_bytes, self.repeats, strict=True))
        )


@dataclass(frozen=True)
class Speeds:
    """What the processes measured, before they know any split: seconds of a phase at some numbers of samples, and the
    lines between them; and the link."""

    samples: tuple[int, ...]
    """Two at least, ascending."""
    forward_s: tuple[tuple[float, ...], ...]
    """For each process, at these numbers."""
    backward_s: tuple[tuple[float, ...], ...]
    update_s: tuple[float, ...]
    reduced_bytes: tuple[int, int]
    reduced_s: tuple[float, float]
    """An all-reduce of so many bytes, one of several under way."""
    taken_s: tuple[Taken, Taken]
    """The processor time of exchanging so many bytes that computing would have had."""
    processor_share: float
    """Of the time of computing, that in which the processes had their cores; below 1 other work had them."""

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
        """Beyond the ends the lines go on."""
        above = min(max(bisect(self.samples, samples), 1), len(self.samples) - 1)
        (few, many), (short, long) = self.samples[above - 1 : above + 1], seconds[above - 1 : above + 1]
        each = max((long - short) / (many - few), 0.0)
        return max(short + each * (samples - few), 1e-9)

    def taken(self, size: float) -> Taken:
        """What exchanging so many bytes takes from computing."""
        few, many = self.reduced_bytes
        share = (size - few) / (many - few)
        return Taken(*(max(low + share * (high - low), 0.0) for low, high in zip(*self.taken_s, strict=True)))

    @property
    def link(self) -> tuple[float, float]:
        """GB/s and latency of an all-reduce of two, as the simulation counts it: two messages of half the bytes."""
        (few, many), (short, long) = self.reduced_bytes, self.reduced_s
        gb_s = (many - few) / max(long - short, 1e-9) / 1e9
        return gb_s, max(short - few / 1e9 / gb_s, 0.0) / 2


def problem(model: Model, speeds: Speeds) -> Problem:
    """The two processes as machines with one GPU each."""
    gb_s, latency_s = speeds.link
    machines = tuple(GpuNode(name, 1, gb_s, gb_s) for name in ("fast", f"{model.slow} times slower"))
    taken_s = tuple(speeds.taken(group.gradient_bytes) for group in model.groups)
    return Problem(Devices(machines, latency_s), model.groups, model.batch, speeds, taken_s)


def speeds_of(values: dict[str, Any]) -> Speeds:
    """From JSON."""
    return Speeds(
        samples=tuple(values["samples"]),
        forward_s=tuple(map(tuple, values["forward_s"])),
        backward_s=tuple(map(tuple, values["backward_s"])),
        update_s=tuple(values["update_s"]),
        reduced_bytes=(values["reduced_bytes"][0], values["reduced_bytes"][1]),
        reduced_s=(values["reduced_s"][0], values["reduced_s"][1]),
        taken_s=(Taken(*values["taken_s"][0]), Taken(*values["taken_s"][1])),
        processor_share=values["processor_share"],
    )
