"""A job as layers that stages can be made of, and what one stage costs: seconds, memory and bytes sent.

A stage with several devices is replicated: the first of them, its leader, exchanges activations with the other stages
and divides each micro-batch among all. Activations kept for backward follow the 1F1B schedule: a stage holds as many
micro-batches as there are stages from it to the last (Narayanan et al., "Efficient Large-Scale Language Model Training
on GPU Clusters", 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ddlprof.extensions.hetero.devices import Devices
from ddlprof.extensions.hetero.problem import DeviceTimes
from ddlprof.extensions.hetero.simulation import ring, transfer_s
from ddlprof.extensions.hetero.training import divided


@dataclass(frozen=True)
class StageLayer:
    """Consecutive layers that stay together: the model can be divided before the first of them."""

    name: str
    """The module that it begins with."""
    share: float
    """The share of the computation of forward; the same of backward."""
    gradient_bytes: float
    input_bytes: float
    """The bytes that pass to it from the layers before, for one sample; of the first, the batch."""
    saved_bytes: float
    """The activations that it keeps for backward, for one sample."""
    layers: int = 1


@dataclass(frozen=True)
class MemoryUse:
    """The bytes that the whole model would use on one device with so many samples in a micro-batch."""

    fixed: float
    """Whatever is divided: the context, workspaces."""
    states: float
    """Parameters, gradients and states of the optimizer."""
    saved: float
    """Activations of one micro-batch that are kept for backward."""
    temporary: float
    """The most besides, for a moment: operands and results of the largest operators."""


@dataclass(frozen=True)
class StagedProblem:
    """A job and the devices that its stages could run on."""

    devices: Devices
    layers: tuple[StageLayer, ...]
    """In forward order."""
    batch: int
    """The number of samples of one update."""
    times: DeviceTimes
    memory: Callable[[int], MemoryUse]
    """The memory by the samples of a micro-batch."""
    limits: tuple[float | None, ...]
    """The bytes that a process gets on each device; None: not known, and not looked at."""

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """The share of computation before each layer, and 1 at the end."""
        return _sums([layer.share for layer in self.layers])

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """The bytes of gradients before each layer, and of all at the end."""
        return _sums([layer.gradient_bytes for layer in self.layers])

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """The share of kept activations before each layer, and 1 at the end."""
        sums = _sums([layer.saved_bytes for layer in self.layers])
        return tuple(each / (sums[-1] or 1.0) for each in sums)


def _sums(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(accumulate(values, initial=0.0))


@dataclass(frozen=True)
class Stage:
    """Consecutive layers on one device, or on several that divide each micro-batch."""

    first: int
    """Its first layer, by index."""
    end: int
    """The layer after its last one."""
    devices: tuple[int, ...]
    """By index; the first is the leader."""
    samples: tuple[int, ...]
    """Those of each device in a micro-batch."""


@dataclass(frozen=True)
class StagedStrategy:
    """How a step is done: stages in forward order, and the number of micro-batches."""

    stages: tuple[Stage, ...]
    micro_batches: int

    @property
    def used(self) -> tuple[int, ...]:
        """The devices in the order of ranks: stage by stage, leaders first."""
        return tuple(device for stage in self.stages for device in stage.devices)


def shares_of(problem: StagedProblem, group: Sequence[int], samples: int) -> tuple[int, ...] | None:
    """A micro-batch divided among replicas by their speed; None: too few samples for one each."""
    if len(group) == 1:
        return (samples,)
    each = max(samples // len(group), 1)
    found = divided(samples, [1.0 / problem.times.work(device, each).total_s for device in group])
    return found if min(found) else None


@dataclass(frozen=True)
class GroupCost:
    """What stages on a group of devices cost, whatever their layers."""

    problem: StagedProblem
    devices: tuple[int, ...]
    samples: tuple[int, ...]
    micro_batches: int

    def passes_s(self, first: int, end: int) -> tuple[float, float]:
        """Seconds of forward and of backward of one micro-batch, until the leader has the results of all replicas.

        Inputs go out to one replica after the other; results come back when they are there.
        """
        forward_s = backward_s = sent_s = returned_s = 0.0
        problem = self.problem
        share = problem.shares[end] - problem.shares[first]
        for number, ((forward, backward), count) in enumerate(zip(self._works, self.samples, strict=True)):
            into_s = out_s = 0.0
            if number:
                link = self.devices[0], self.devices[number]
                if first:  # replicas of the first stage have the batch
                    into_s = transfer_s(problem.devices, *link, count * problem.layers[first].input_bytes)
                out_s = transfer_s(problem.devices, *link, count * self.output_bytes(end))
            sent_s, returned_s = sent_s + into_s, returned_s + out_s
            forward_s = max(forward_s, sent_s + share * forward + out_s)
            backward_s = max(backward_s, returned_s + share * backward + into_s)
        return forward_s, backward_s

    def computes_s(self, first: int, end: int) -> float:
        """Seconds of both passes of one micro-batch on the leader, which more layers only add to."""
        return (self.problem.shares[end] - self.problem.shares[first]) * sum(self._works[0])

    def output_bytes(self, end: int) -> float:
        """The bytes of a sample that leave a stage; nothing but a loss leaves the last."""
        return self.problem.layers[end].input_bytes if end < len(self.problem.layers) else 0.0

    @cached_property
    def _works(self) -> list[tuple[float, float]]:
        works = (self.problem.times.work(*each) for each in zip(self.devices, self.samples, strict=True))
        return [(work.forward_s, work.backward_s) for work in works]

    def update_s(self, first: int, end: int) -> float:
        """Seconds from the last backward to the end of the update: replicas sum their gradients, then all update."""
        problem, size = self.problem, self.gradient_bytes(first, end)
        share = size / (problem.weights[-1] or 1.0)
        updates = (problem.times.work(*each).update_s for each in zip(self.devices, self.samples, strict=True))
        reduced_s = ring(problem.devices, self.devices, size)[1] if len(self.devices) > 1 and size else 0.0
        return reduced_s + share * max(updates)

    def gradient_bytes(self, first: int, end: int) -> float:
        """The bytes of the gradients of these layers."""
        return self.problem.weights[end] - self.problem.weights[first]

    def bytes(self, first: int, end: int, to_last: int) -> tuple[float, ...]:
        """The bytes that each device needs, with so many stages from this one to the last, itself included.

        `torch.distributed.pipelining` has a buffer for what each micro-batch receives: activations from the stage
        before, and gradients from the one after.
        """
        problem, whole = self.problem, sum(self.samples)
        states = self.gradient_bytes(first, end) / (problem.weights[-1] or 1.0)
        kept = problem.kept[end] - problem.kept[first]
        flight = min(to_last, self.micro_batches)
        received = (problem.layers[first].input_bytes if first else 0.0) + self.output_bytes(end)
        found = []
        for number, count in enumerate(self.samples):
            use = problem.memory(count)
            buffers = received * (self.micro_batches * whole if not number else flight * count)
            found.append(use.fixed + states * use.states + flight * kept * use.saved + use.temporary + buffers)
        return tuple(found)

    def fits(self, first: int, end: int, to_last: int) -> bool:
        """Whether each device has the memory, as far as it is known."""
        needs = self.bytes(first, end, to_last)
        limits = (self.problem.limits[device] for device in self.devices)
        return all(limit is None or need <= limit for need, limit in zip(needs, limits, strict=True))


def group_cost(problem: StagedProblem, stage: Stage, micro_batches: int) -> GroupCost:
    """The costs of a stage's devices."""
    return GroupCost(problem, stage.devices, stage.samples, micro_batches)


def memory_of(problem: StagedProblem, strategy: StagedStrategy) -> dict[int, float]:
    """The bytes that each used device needs."""
    found: dict[int, float] = {}
    for number, stage in enumerate(strategy.stages):
        costs = group_cost(problem, stage, strategy.micro_batches)
        needs = costs.bytes(stage.first, stage.end, len(strategy.stages) - number)
        found |= dict(zip(stage.devices, needs, strict=True))
    return found


def fits(problem: StagedProblem, strategy: StagedStrategy) -> bool:
    """Whether every stage fits into the memory of its devices, as far as this is known."""
    limits = problem.limits
    return all((limit := limits[device]) is None or need <= limit
               for device, need in memory_of(problem, strategy).items())  # fmt: skip
