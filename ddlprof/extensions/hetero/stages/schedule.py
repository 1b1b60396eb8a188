"""The step of a staged strategy on the clock, in the order of `torch.distributed.pipelining.Schedule1F1B`.

Stage s of S runs S - s micro-batches forward, then one backward and one forward in turn, then the backwards that are
left. In turn it sends a result and receives what it needs next at once and waits for both, so a transfer takes place
when both sides are there and is not hidden behind computation. Transfers of different pairs of stages do not wait for
each other, also on the same link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ddlprof.extensions.hetero.simulation import Lane, Slice, path, ring, transfer_s
from ddlprof.extensions.hetero.stages.problem import Stage, StagedProblem, StagedStrategy, group_cost, memory_of


class Compute(NamedTuple):
    """A pass of one micro-batch: `forward` or `backward`."""

    name: str
    micro_batch: int


class Move(NamedTuple):
    """What crosses a boundary between two stages: `activations` to the next, or `gradients` to the one before."""

    name: str
    boundary: int
    """Of the stage before it."""
    micro_batch: int


class Post(NamedTuple):
    """Offers these transfers to the other sides."""

    moves: tuple[Move, ...]


class Wait(NamedTuple):
    """Waits until these transfers have ended."""

    moves: tuple[Move, ...]


Action: TypeAlias = "Compute | Post | Wait"
_Moves: TypeAlias = "Callable[[str, int], tuple[Move, ...]]"


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """What one stage does, in the order of `Schedule1F1B` of torch."""
    ahead = min(micro_batches, stages - stage)

    def crossing(name: str, boundary: int, number: int) -> tuple[Move, ...]:
        return (Move(name, boundary, number),) if 0 <= boundary < stages - 1 else ()

    def received(name: str, number: int) -> tuple[Move, ...]:
        return crossing(name, stage - 1 if name == "activations" else stage, number)

    def sent(name: str, number: int) -> tuple[Move, ...]:
        return crossing(name, stage if name == "activations" else stage - 1, number)

    def exchange(moves: tuple[Move, ...]) -> Iterator[Action]:
        yield Post(moves)
        yield Wait(moves)

    under_way: tuple[Move, ...] = ()
    for number in range(ahead):
        yield from exchange(received("activations", number))
        yield Compute("forward", number)
        yield Wait(under_way)
        if number + 1 < ahead:
            yield Post(under_way := sent("activations", number))
    left = sent("activations", ahead - 1)
    for number in range(micro_batches):
        following = ahead + number
        yield from exchange(left + received("gradients", number))
        yield Compute("backward", number)
        if following >= micro_batches:
            yield from _drained(number, micro_batches, received, sent)
            return
        yield from exchange(sent("gradients", number) + received("activations", following))
        yield Compute("forward", following)
        left = sent("activations", following)


def _drained(number: int, micro_batches: int, received: _Moves, sent: _Moves) -> Iterator[Action]:
    """The backwards that are left when all forwards are done; `number` is the last one done."""
    under_way = sent("gradients", number)
    yield Post(under_way)
    for left in range(number + 1, micro_batches):
        moves = received("gradients", left)
        yield Post(moves)
        yield Wait(moves)
        yield Compute("backward", left)
        yield Wait(under_way)
        yield Post(under_way := sent("gradients", left))
    yield Wait(under_way)


class LinkUse(NamedTuple):
    """What travels between devices in a step."""

    name: str
    """`activations and gradients` between stages, `micro-batches` between replicas, or `all-reduce` of gradients."""
    devices: tuple[int, ...]
    bytes: float
    """In both directions together, per step."""
    seconds: float
    """While a link carries them, per step."""
    gb_s: float
    """The speed of the slowest link on the way."""


@dataclass(frozen=True)
class StagedStep:
    """The simulated step."""

    step_s: float
    busy_s: tuple[float, ...]
    """For each device the seconds in which it computes or updates; 0: not used."""
    links: tuple[LinkUse, ...]
    memory_bytes: dict[int, float]
    """The bytes that each used device needs."""
    slices: tuple[Slice, ...] = field(default=(), repr=False)
    """All intervals, unordered; empty unless `traced`."""

    @property
    def bubble(self) -> float:
        """The share of the time of the used devices in which they wait for others."""
        used = [each for each in self.busy_s if each]
        return 1.0 - sum(used) / len(used) / self.step_s


def simulate_stages(problem: StagedProblem, strategy: StagedStrategy, traced: bool = False) -> StagedStep:
    """Simulates the step; memory is counted, not looked at."""
    run = _Run(problem, strategy)
    run.run()
    step_s = max(run.now[number] + run.updates_s[number] for number in range(len(strategy.stages)))
    busy_s = [0.0] * len(problem.devices)
    for number, stage in enumerate(strategy.stages):
        works = [problem.times.work(*each) for each in zip(stage.devices, stage.samples, strict=True)]
        share = problem.shares[stage.end] - problem.shares[stage.first]
        weights = group_cost(problem, stage, strategy.micro_batches).gradient_bytes(stage.first, stage.end)
        for device, work in zip(stage.devices, works, strict=True):
            passes_s = strategy.micro_batches * share * (work.forward_s + work.backward_s)
            updated_s = work.update_s * weights / (problem.weights[-1] or 1.0)
            busy_s[device] = passes_s + updated_s + (0.0 if number else run.input_s)
    return StagedStep(
        step_s, tuple(busy_s),
        tuple(_links(problem, strategy)), memory_of(problem, strategy), tuple(run.slices) if traced else (),
    )  # fmt: skip


class _Run:
    """The clocks of all stages. A stage goes on until it waits for another one that is not there yet."""

    def __init__(self, problem: StagedProblem, strategy: StagedStrategy) -> None:
        self.slices: list[Slice] = []
        self._problem, self._strategy = problem, strategy
        stages, micro_batches = strategy.stages, strategy.micro_batches
        costs = [group_cost(problem, stage, micro_batches) for stage in stages]
        self._passes_s = [each.passes_s(stage.first, stage.end) for each, stage in zip(costs, stages, strict=True)]
        self.updates_s = [each.update_s(stage.first, stage.end) for each, stage in zip(costs, stages, strict=True)]
        self._moves_s = moves_s(problem, stages)
        first = stages[0]
        self.input_s = problem.times.work(first.devices[0], problem.batch).before_s
        self.now = [self.input_s, *[0.0] * (len(stages) - 1)]
        self._posted: dict[Move, float] = {}
        self._ended: dict[Move, float] = {}

    def run(self) -> None:
        """Lets the stages go on in turn until all are done."""
        count = len(self._strategy.stages)
        left = {
            stage: list(one_forward_one_backward(stage, count, self._strategy.micro_batches))[::-1]
            for stage in range(count)
        }
        while left:
            for stage in list(left):
                while left[stage] and self._done(stage, left[stage][-1]):
                    left[stage].pop()
                if not left[stage]:
                    self._finished(stage)
                    del left[stage]

    def _done(self, stage: int, action: Action) -> bool:
        """Does it, unless it waits for a transfer to which the other side has not come."""
        now = self.now[stage]
        if isinstance(action, Compute):
            self.now[stage] += self._passes_s[stage][action.name == "backward"]
            for device in self._strategy.stages[stage].devices:
                self._show(("device", device), f"{action.name} {action.micro_batch}", now, self.now[stage])
        elif isinstance(action, Post):
            for move in action.moves:
                if move in self._posted:
                    begin = max(self._posted[move], now)
                    self._ended[move] = begin + self._moves_s[move.boundary]
                    for lane in self._lanes(move):
                        self._show(lane, move.name, begin, self._ended[move])
                self._posted.setdefault(move, now)
        elif any(move not in self._ended for move in action.moves):
            return False
        else:
            self.now[stage] = max([now, *(self._ended[move] for move in action.moves)])
        return True

    def _finished(self, stage: int) -> None:
        for device in self._strategy.stages[stage].devices:
            self._show(("device", device), "update", self.now[stage], self.now[stage] + self.updates_s[stage])

    def _lanes(self, move: Move) -> tuple[Lane, ...]:
        leaders = [self._strategy.stages[move.boundary + more].devices[0] for more in (0, 1)]
        return path(self._problem.devices, *(leaders if move.name == "activations" else leaders[::-1]))[0]

    def _show(self, lane: Lane, name: str, begin: float, end: float) -> None:
        if end > begin:
            self.slices.append(Slice(lane, name, -1, begin, end))


def moves_s(problem: StagedProblem, stages: tuple[Stage, ...]) -> list[float]:
    """Seconds of one micro-batch's activations, and of their gradients, across each boundary between stages."""
    return [
        transfer_s(
            problem.devices, one.devices[0], other.devices[0],
            sum(other.samples) * problem.layers[other.first].input_bytes,
        )
        for one, other in zip(stages, stages[1:], strict=False)  # noqa: RUF007
    ]  # fmt: skip


def _links(problem: StagedProblem, strategy: StagedStrategy) -> Iterator[LinkUse]:
    """What travels between leaders of stages, from leaders to their replicas, and among replicas."""
    devices, count, stages = problem.devices, strategy.micro_batches, strategy.stages
    for seconds, one, other in zip(moves_s(problem, stages), stages, stages[1:], strict=False):
        pair = one.devices[0], other.devices[0]
        size = sum(other.samples) * problem.layers[other.first].input_bytes
        yield LinkUse("activations and gradients", pair, 2 * count * size, 2 * count * seconds, path(devices, *pair)[1])
    for stage in stages:
        costs = group_cost(problem, stage, count)
        sizes = [problem.layers[stage.first].input_bytes * (2 if stage.first else 0), 2 * costs.output_bytes(stage.end)]
        for device, samples in list(zip(stage.devices, stage.samples, strict=True))[1:]:
            pair = stage.devices[0], device
            seconds = count * sum(transfer_s(devices, *pair, samples * size) for size in sizes if size)
            yield LinkUse("micro-batches", pair, count * samples * sum(sizes), seconds, path(devices, *pair)[1])
        if len(stage.devices) > 1:
            size = costs.gradient_bytes(stage.first, stage.end)
            slowest = devices.slowest_gb_s(stage.devices)
            sent = 2 * (len(stage.devices) - 1) * size
            yield LinkUse("all-reduce", stage.devices, sent, ring(devices, stage.devices, size)[1], slowest)
