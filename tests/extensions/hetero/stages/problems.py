"""Small jobs whose layers are divided over devices with simple times."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.stages.problem import (
    MemoryUse,
    Stage,
    StagedProblem,
    StagedStrategy,
    StageLayer,
    shares_of,
)
from ddlprof.extensions.hetero.stages.search import numbers_of_micro_batches
from tests.extensions.hetero.problems import Linear, apart

MB = 1e6


def layered(
    each_s: Sequence[float], layers: int, batch: int, *, devices: Devices | None = None, passed: float = 0.0,
    limits: Sequence[float | None] | None = None, update_s: float = 0.0,
) -> StagedProblem:  # fmt: skip
    """Equal layers of 1 MB of gradients, 3 MB more of states, and 1 MB of activations for each sample."""
    parts = tuple(StageLayer(f"l{number}", 1 / layers, MB, passed, MB) for number in range(layers))
    return StagedProblem(
        devices or apart(len(each_s)), parts, batch, Linear(tuple(each_s), update_s),
        lambda samples: MemoryUse(0.0, 4 * MB * layers, samples * MB * layers, 0.0),
        tuple(limits or [None] * len(each_s)),
    )  # fmt: skip


def one_each(job: StagedProblem, ends: Sequence[int], order: Sequence[int], micro_batches: int) -> StagedStrategy:
    """A stage on each device in this order, with these layers after their last ones."""
    samples = (job.batch // micro_batches,)
    begins = [0, *ends]
    stages = zip(begins, ends, order, strict=False)
    return StagedStrategy(tuple(Stage(first, end, (device,), samples) for first, end, device in stages), micro_batches)


def toy(seed: int) -> StagedProblem:
    """Two or three devices and up to six layers; communication, memory and speeds may or may not matter."""
    dice = random.Random(seed)
    count = dice.choice([2, 3, 3])
    machines = tuple(GpuNode(f"m{number}", 1, 10.0, dice.choice([0.5, 1.0, 5.0])) for number in range(count))
    sizes = [dice.choice([1, 2, 5]) for _ in range(dice.randint(count, 6))]
    layers = tuple(
        StageLayer(
            f"l{number}", size / sum(sizes), dice.choice([1e6, 5e7]), dice.choice([1e4, 1e6, 2e7]),
            dice.choice([1e6, 1e7]),
        )
        for number, size in enumerate(sizes)
    )  # fmt: skip
    times = Linear(tuple(dice.choice([0.004, 0.01, 0.03]) for _ in range(count)), 0.002)
    batch = dice.choice([4, 6, 8, 12])
    states, saved = 4 * sum(layer.gradient_bytes for layer in layers), sum(layer.saved_bytes for layer in layers)

    def memory(samples: int) -> MemoryUse:
        return MemoryUse(1e8, states, samples * saved, samples * 1e6)

    limits = (None, 1e8 + 0.6 * states + 0.5 * batch * saved, 1e8 + 0.4 * states + 0.3 * batch * saved)
    return StagedProblem(
        Devices(machines), layers, batch, times, memory, tuple(dice.choice(limits) for _ in range(count))
    )


def every_strategy(job: StagedProblem) -> Iterator[StagedStrategy]:
    """Every group of devices, order, cut and number of micro-batches that the schedule can run."""
    for micro_batches in numbers_of_micro_batches(job.batch):
        for stages in _every_stages(job, 0, frozenset(range(len(job.devices))), micro_batches):
            if len(stages) <= micro_batches and (len(stages) > 1 or micro_batches > 1):
                yield StagedStrategy(stages, micro_batches)


def _every_stages(
    job: StagedProblem, first: int, free: frozenset[int], micro_batches: int
) -> Iterator[tuple[Stage, ...]]:
    if first == len(job.layers):
        yield ()
        return
    for size in range(1, len(free) + 1):
        for group in combinations(sorted(free), size):
            samples = shares_of(job, group, job.batch // micro_batches)
            if samples is None:
                continue
            pairs = sorted(zip(group, samples, strict=True), key=lambda pair: (-pair[1], pair[0]))
            devices, shares = tuple(device for device, _ in pairs), tuple(share for _, share in pairs)
            for end in range(first + 1, len(job.layers) + 1):
                for rest in _every_stages(job, end, free - set(group), micro_batches):
                    yield (Stage(first, end, devices, shares), *rest)
