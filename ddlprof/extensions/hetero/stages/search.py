"""Searches for the stages with the shortest step.

On few devices every group of devices, every order, every cut and every number of micro-batches is in question. The
dynamic programme (`programme.py`) gives a lower bound of each, and those whose bound is not above the best step so far
are simulated: the result is the best one, unless there are too many of them. On many devices, they are taken in a few
orders, in groups of neighbours, and the best strategies are improved by small changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from ddlprof.extensions.hetero.stages.problem import Stage, StagedProblem, StagedStrategy, fits
from ddlprof.extensions.hetero.stages.programme import Free, Groups, Programme
from ddlprof.extensions.hetero.stages.schedule import StagedStep, simulate_stages
from ddlprof.extensions.hetero.training import divided

MOST_MICRO_BATCHES = 64
_MOST_PAIRS = 256
"""The most pairs of free devices and groups of them with which every order is tried."""
_MOST_STAGES = 16
"""The most stages where not every order is tried."""
_STARTS, _MOST_CHANGES = 4, 200
"""The best strategies that are improved, and how many changes are simulated for each."""
MOST_SIMULATED = 4000
"""The most strategies that are simulated to prove that none is better."""


@dataclass(frozen=True)
class PlannedStages:
    """A strategy and its predicted step."""

    strategy: StagedStrategy
    step: StagedStep
    exact: bool = False
    """Whether no strategy has a shorter step: all others were simulated, or have a bound that is not below it."""

    @property
    def slowest(self) -> tuple[int, int, float]:
        """The device that computes longest, its samples of a micro-batch, and its seconds of a step."""
        used = [each for stage in self.strategy.stages for each in zip(stage.devices, stage.samples, strict=True)]
        device, samples = max(used, key=lambda each: self.step.busy_s[each[0]])
        return device, samples, self.step.busy_s[device]


@dataclass(frozen=True)
class StagedPlan:
    """The best strategy found, and the best one that needs no search."""

    problem: StagedProblem
    best: PlannedStages
    uniform: PlannedStages | None
    """As many layers on every device; None: it does not fit into memory."""


def make_staged_plan(problem: StagedProblem) -> StagedPlan | None:
    """Searches and compares; None: no way to divide the layers fits into the memory of the devices."""
    best = search_stages(problem)
    if best is None:
        return None
    steps = ((each, simulate_stages(problem, each)) for each in uniform_stages(problem) if fits(problem, each))
    uniform = min(steps, key=lambda each: each[1].step_s, default=None)
    return StagedPlan(problem, best, PlannedStages(*uniform) if uniform else None)


def search_stages(problem: StagedProblem, most_simulated: int = MOST_SIMULATED) -> PlannedStages | None:
    """The best strategy found; None: no way to divide the layers fits into the memory of the devices."""
    small = _pairs(problem) <= _MOST_PAIRS
    step_s = cache(lambda strategy: simulate_stages(problem, strategy).step_s)
    spaces = [_by_machine(problem)] if small else [_in_order(problem, order) for order in _orders(problem)]
    numbers = numbers_of_micro_batches(problem.batch)
    found = [each for each in uniform_stages(problem) if fits(problem, each)]
    for micro_batches in numbers if small else _few(numbers):
        for free, groups in spaces:
            programme = Programme(problem, micro_batches, groups, min(map(step_s, found), default=math.inf))
            for stages in _numbers_of_stages(problem, micro_batches):
                suffixes = programme.suffixes(free, 0, stages, None)
                found += [StagedStrategy(each.stages, micro_batches) for each in suffixes]
    if not found:
        return None
    found = sorted(dict.fromkeys(found), key=lambda each: (step_s(each), len(each.used)))[:_STARTS]
    best = min((_improved(problem, each, step_s) for each in found), key=step_s)
    exact = False
    if small:
        best, exact = _proved(problem, best, step_s, most_simulated)
    return PlannedStages(best, simulate_stages(problem, best), exact)


def _proved(
    problem: StagedProblem, best: StagedStrategy, step_s: Callable[[StagedStrategy], float], most: int
) -> tuple[StagedStrategy, bool]:
    """The best of all whose bound is below the step of `best`, and whether all of them were simulated."""
    free, groups = _by_machine(problem)
    simulated = 0
    for micro_batches in numbers_of_micro_batches(problem.batch):
        programme = Programme(problem, micro_batches, groups, step_s(best))
        for stages in _numbers_of_stages(problem, micro_batches):
            for strategy in programme.strategies(free, stages):
                simulated += 1
                if simulated > most:
                    return best, False
                if step_s(strategy) < step_s(best):
                    best = strategy
                    programme.best_s = step_s(best)
    return best, True


def _numbers_of_stages(problem: StagedProblem, micro_batches: int) -> range:
    """The schedule needs as many micro-batches as stages. One stage with one micro-batch is no pipeline: that plan
    divides the batch alone."""
    most = min(len(problem.devices), len(problem.layers), micro_batches, _MOST_STAGES)
    return range(1 if micro_batches > 1 else 2, most + 1)


def numbers_of_micro_batches(batch: int) -> list[int]:
    """The numbers of equal micro-batches into which an update can be divided."""
    return [number for number in range(1, min(batch, MOST_MICRO_BATCHES) + 1) if batch % number == 0]


def _few(numbers: Sequence[int]) -> Sequence[int]:
    """Some of them, about twice as many each."""
    found: list[int] = []
    for number in numbers:
        if not found or number >= 2 * found[-1]:
            found.append(number)
    return found


def uniform_stages(problem: StagedProblem) -> Iterator[StagedStrategy]:
    """Plans that need no search: as many layers on every device, in the order of the file, with any number of
    micro-batches."""
    stages = min(len(problem.devices), len(problem.layers))
    ends = [0]
    for layers in divided(len(problem.layers), [1.0] * stages):
        ends.append(ends[-1] + layers)
    for micro_batches in numbers_of_micro_batches(problem.batch):
        if micro_batches >= stages > 1:
            samples = (problem.batch // micro_batches,)
            yield StagedStrategy(
                tuple(Stage(ends[n], ends[n + 1], (n,), samples) for n in range(stages)), micro_batches
            )


def _pairs(problem: StagedProblem) -> int:
    return math.prod((each.gpus + 1) * (each.gpus + 2) // 2 for each in problem.devices.machines)


def _by_machine(problem: StagedProblem) -> tuple[Free, Groups]:
    """Any devices in any order. Those of one machine are alike, so only their number counts."""
    machines = problem.devices.machines
    of = [[each.index for each in problem.devices.all if each.machine == number] for number in range(len(machines))]

    @cache
    def groups(free: tuple[int, ...]) -> list[tuple[tuple[int, ...], Free]]:
        found = []
        for counts in product(*(range(count + 1) for count in free)):
            if any(counts):
                taken = [of[m][len(of[m]) - free[m] + n] for m, count in enumerate(counts) for n in range(count)]
                found.append((tuple(taken), tuple(a - b for a, b in zip(free, counts, strict=True))))
        return found

    return tuple(machine.gpus for machine in machines), groups


def _orders(problem: StagedProblem) -> list[tuple[int, ...]]:
    """Orders in which devices are taken: the machines with the fastest or the largest GPUs first, and the reverse."""
    devices = problem.devices.all
    each = max(problem.batch // len(devices), 1)
    speed = {device.index: -problem.times.work(device.index, each).total_s for device in devices}
    memory = {device.index: problem.limits[device.index] or math.inf for device in devices}
    found: list[tuple[int, ...]] = []
    for sizes in (speed, memory):
        order = sorted(sizes, key=lambda index: (-sizes[index], index))
        found += [tuple(order), tuple(reversed(order))]
    return list(dict.fromkeys(found))


def _in_order(problem: StagedProblem, order: tuple[int, ...]) -> tuple[Free, Groups]:
    """Devices from the begin of an order: powers of two, or those that are left of a machine. The first ones may be
    left out, too."""
    machine = [problem.devices.all[index].machine for index in order]

    @cache
    def groups(place: int) -> list[tuple[tuple[int, ...], Free]]:
        left = len(order) - place
        same = next((n for n in range(left) if machine[place + n] != machine[place]), left)
        sizes = {2**power for power in range(left.bit_length()) if 2**power <= left} | {same}
        return [(order[place : place + size], place + size) for size in sorted(sizes - {0})]

    return 0, groups


def _improved(
    problem: StagedProblem, best: StagedStrategy, step_s: Callable[[StagedStrategy], float]
) -> StagedStrategy:
    """Takes the best small change, until none helps or enough were tried."""
    tried = 0
    while tried < _MOST_CHANGES:
        changed = [each for each in _neighbours(problem, best) if fits(problem, each)]
        tried += len(changed)
        better = min(changed, key=step_s, default=best)
        if step_s(better) >= step_s(best) * (1 - 1e-9):
            break
        best = better
    return best


def _neighbours(problem: StagedProblem, strategy: StagedStrategy) -> Iterator[StagedStrategy]:
    """One cut a layer earlier or later; the devices of two stages exchanged."""
    stages = strategy.stages
    for number in range(len(stages) - 1):
        one, other = stages[number : number + 2]
        for end in (one.end - 1, one.end + 1):
            if one.first < end < other.end:
                pair = replace(one, end=end), replace(other, first=end)
                yield replace(strategy, stages=(*stages[:number], *pair, *stages[number + 2 :]))
    for number, one in enumerate(stages):
        for later in range(number + 1, len(stages)):
            other = stages[later]
            if problem.devices.all[one.devices[0]].kind != problem.devices.all[other.devices[0]].kind:
                changed = list(stages)
                changed[number] = replace(one, devices=other.devices, samples=other.samples)
                changed[later] = replace(other, devices=one.devices, samples=one.samples)
                yield replace(strategy, stages=tuple(changed))
