"""Searches for the strategy with the shortest step, and compares it with uniform plans, which need no search.

The search is simulated annealing that starts from the uniform plans and a few others, then tries every small change of
the best strategy. It is deterministic for a seed, and never worse than a plan from which it starts.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.problem import Problem, SplitStrategy
from ddlprof.extensions.hetero.simulation import SimulatedStep, simulate
from ddlprof.extensions.hetero.training import divided

EVEN_AR = "even, all-reduce"
EVEN_PS = "even, parameter server"
SPEED_AR = "by speed, all-reduce"
SPEED_PS = "by speed, parameter server"


def uniform(problem: Problem) -> dict[str, SplitStrategy]:
    """The four plans with which HeteroG is compared, by name. All devices are used if the batch is large enough."""
    even = divided(problem.batch, [1.0] * len(problem.devices))
    by_speed = divided(problem.batch, speeds(problem))
    everywhere = (None,) * len(problem.groups)
    return {
        EVEN_AR: SplitStrategy(even, everywhere),
        EVEN_PS: SplitStrategy(even, _servers(problem, even)),
        SPEED_AR: SplitStrategy(by_speed, everywhere),
        SPEED_PS: SplitStrategy(by_speed, _servers(problem, by_speed)),
    }


def _servers(problem: Problem, samples: Sequence[int]) -> tuple[int, ...]:
    """A server for each group.

    The largest group goes first, each to the machine whose network has least to carry so far.
    """
    devices, fast = problem.devices, speeds(problem)
    used = sorted((index for index, count in enumerate(samples) if count), key=lambda index: (-fast[index], index))
    carried = dict.fromkeys(range(len(devices.machines)), 0.0)
    found = [used[0]] * len(problem.groups)
    for group in sorted(range(len(found)), key=lambda group: -problem.groups[group].gradient_bytes):
        found[group] = min(used, key=lambda index: carried[devices.all[index].machine])
        machine = devices.all[found[group]].machine
        carried[machine] += problem.groups[group].gradient_bytes / (devices.machines[machine].network_gb_s or 1.0)
    return tuple(found)


def speeds(problem: Problem) -> list[float]:
    """The samples per second of each device alone, with an even share of the batch."""
    each = max(problem.batch // len(problem.devices), 1)
    return [each / problem.times.work(device, each).total_s for device in range(len(problem.devices))]


Advance = Callable[[int, int], None]
"""`advance(simulated, of at most)`."""
EVALUATIONS = 6000
"""The number of steps that are simulated, which takes seconds."""
_STARTS = 3
"""The number of plans, the best ones, from which the search starts."""
_HALVINGS = 40
_HOT, _COLD = 0.1, 0.001
"""The first and last temperature, as shares of the best step. A step 10 % longer is first accepted one time in
three."""


def search(
    problem: Problem, seed: int = 0, evaluations: int = EVALUATIONS, advance: Advance = lambda done, total: None
) -> SplitStrategy:
    """The best strategy found. Raises `UserError` if all devices together have too little memory for the batch."""
    return _Search(problem, random.Random(seed), advance).run(evaluations)


def fits(problem: Problem, strategy: SplitStrategy) -> bool:
    """Whether every share fits into the memory of its device, as far as this is known."""
    limits = (problem.times.most(device) for device in range(len(problem.devices)))
    return all(most is None or count <= most for count, most in zip(strategy.samples, limits, strict=True))


class _Search:
    """The steps simulated so far, and the best strategy."""

    def __init__(self, problem: Problem, dice: random.Random, advance: Advance) -> None:
        self._problem = problem
        self._dice = dice
        self._advance, self._most = advance, 0
        self._seen: dict[SplitStrategy, float] = {}

    def run(self, evaluations: int) -> SplitStrategy:
        starts = list(dict.fromkeys(_starts(self._problem)))
        self._most = len(starts) + 2 * evaluations
        self._advance(0, self._most)
        starts.sort(key=self._step_s)
        if self._step_s(starts[0]) == math.inf:
            starts = [self._packed()]
        good = [start for start in starts[:_STARTS] if self._step_s(start) < math.inf]
        share = evaluations // len(good)
        ends = [self._refined(self._annealed(start, share), share) for start in good]
        best = min((*good, *ends), key=self._step_s)
        by_rank = replace(best, by_rank=True)
        return by_rank if self._step_s(by_rank) < self._step_s(best) else best

    def _step_s(self, strategy: SplitStrategy) -> float:
        """The seconds of a step; infinite if it does not fit into memory."""
        if strategy not in self._seen:
            fitting = fits(self._problem, strategy)
            self._seen[strategy] = simulate(self._problem, strategy).step_s if fitting else math.inf
            self._advance(len(self._seen), self._most)
        return self._seen[strategy]

    def _packed(self) -> SplitStrategy:
        """A strategy with as many samples on each device as fit, used if no other plan fits. Raises UserError."""
        batch = self._problem.batch
        known = (self._problem.times.most(device) for device in range(len(self._problem.devices)))
        limits = [batch if most is None else most for most in known]
        if sum(limits) < batch:
            raise UserError(
                f"a batch of {batch:,} does not fit: the memory of all devices together holds"
                f" {sum(limits):,}; give a smaller --global-batch"
            )
        return SplitStrategy(_within(divided(batch, limits), limits), (None,) * len(self._problem.groups))

    def _annealed(self, start: SplitStrategy, evaluations: int) -> SplitStrategy:
        now = best = start
        for number in range(evaluations):
            heat = _HOT * (_COLD / _HOT) ** (number / evaluations)
            tried = _changed(self._problem, now, self._dice)
            worse = (self._step_s(tried) - self._step_s(now)) / self._step_s(best)
            if worse <= 0 or self._dice.random() < math.exp(-worse / heat):
                now = tried
            if self._step_s(now) < self._step_s(best):
                best = now
        return best

    def _refined(self, best: SplitStrategy, evaluations: int) -> SplitStrategy:
        """Takes the first small change that helps, until none helps or `evaluations` were tried."""
        limit = len(self._seen) + evaluations
        improved = True
        while improved and len(self._seen) < limit:
            improved = False
            for tried in _neighbours(self._problem, best):
                if self._step_s(tried) < self._step_s(best) * (1 - 1e-9):
                    best, improved = tried, True
                    break
        return best


def _within(samples: tuple[int, ...], limits: list[int]) -> tuple[int, ...]:
    """The same number of samples in all, with none above its limit."""
    found = [min(count, most) for count, most in zip(samples, limits, strict=True)]
    left = sum(samples) - sum(found)
    for index, most in enumerate(limits):
        more = min(most - found[index], left)
        found[index] += more
        left -= more
    return tuple(found)


def _starts(problem: Problem) -> Iterator[SplitStrategy]:
    """The uniform plans, and plans with the fastest devices only: machine by machine, and device by device."""
    yield from uniform(problem).values()
    fast = speeds(problem)
    devices = problem.devices.all
    everywhere: tuple[int | None, ...] = (None,) * len(problem.groups)
    for device in devices:
        yield SplitStrategy(tuple(problem.batch * (each is device) for each in devices), everywhere)
    by_speed = sorted(range(len(devices)), key=lambda index: (-fast[index], index))
    by_machine = sorted(
        range(len(devices)),
        key=lambda index: (-max(fast[d.index] for d in devices if d.machine == devices[index].machine), index),
    )
    for ordered in (by_speed, by_machine):
        for count in range(2, len(devices) + 1):
            chosen = ordered[:count]
            weights = [fast[index] if index in chosen else 0.0 for index in range(len(devices))]
            yield SplitStrategy(divided(problem.batch, weights), everywhere)
            balanced = _balanced(problem, chosen)
            if sum(balanced) == problem.batch:  # otherwise their memory is too small
                yield SplitStrategy(balanced, everywhere)
            yield _served(SplitStrategy(divided(problem.batch, weights), (chosen[0],) * len(problem.groups)))


def _balanced(problem: Problem, chosen: list[int]) -> tuple[int, ...]:
    """The split with which the last of these devices finishes computing soonest."""

    def within(device: int, seconds: float) -> int:
        """The most samples that the device computes within that time."""
        most = bisect_right(
            range(1, problem.batch + 1), seconds, key=lambda count: problem.times.work(device, count).total_s
        )
        limit = problem.times.most(device)
        return most if limit is None else min(most, limit)

    low_s, high_s = 0.0, max(problem.times.work(device, problem.batch).total_s for device in chosen)
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if sum(within(device, middle_s) for device in chosen) >= problem.batch:
            high_s = middle_s
        else:
            low_s = middle_s
    found = {device: within(device, high_s) for device in chosen}
    left = sum(found.values()) - problem.batch
    while left > 0:  # takes back what was too much, from devices that finish last
        last = max(chosen, key=lambda device: problem.times.work(device, found[device]).total_s if found[device] else 0)
        found[last] -= 1
        left -= 1
    return tuple(found.get(device, 0) for device in range(len(problem.devices)))


def _served(strategy: SplitStrategy) -> SplitStrategy:
    """The same strategy with all servers among the used devices."""
    used = strategy.used
    servers = tuple(each if each is None or each in used else used[0] for each in strategy.servers)
    return replace(strategy, servers=servers)


def _moved(strategy: SplitStrategy, giver: int, taker: int, count: int) -> SplitStrategy:
    samples = list(strategy.samples)
    samples[giver] -= count
    samples[taker] += count
    return _served(replace(strategy, samples=tuple(samples)))


def _shifted(problem: Problem, strategy: SplitStrategy, giver: str, taker: str, count: int) -> SplitStrategy:
    """Moves `count` samples from each device of one kind, if it has them, evenly to the devices of another kind."""
    samples = list(strategy.samples)
    devices = problem.devices.all
    givers = [each.index for each in devices if each.kind == giver and samples[each.index] >= count]
    takers = [each.index for each in devices if each.kind == taker]
    for index in givers:
        samples[index] -= count
    for index, more in zip(takers, divided(count * len(givers), [1.0] * len(takers)), strict=True):
        samples[index] += more
    return _served(replace(strategy, samples=tuple(samples)))


def _changed(problem: Problem, strategy: SplitStrategy, dice: random.Random) -> SplitStrategy:
    """The strategy with one random change."""
    devices, groups = len(problem.devices), len(problem.groups)
    used = strategy.used
    kind = dice.random()
    if devices > 1 and kind < 0.6:
        giver = dice.choice(used)
        taker = dice.choice([index for index in range(devices) if index != giver])
        has = strategy.samples[giver]
        if kind < 0.1:  # a device leaves
            return _moved(strategy, giver, taker, has)
        if kind < 0.3:  # devices of one kind change together: a change of one would leave the slowest as slow
            one, other = (problem.devices.all[index].kind for index in (giver, taker))
            return _shifted(problem, strategy, one, other, 2 ** dice.randrange(has.bit_length()))
        if kind < 0.4:  # two exchange shares
            return _moved(strategy, giver, taker, has - strategy.samples[taker])
        return _moved(strategy, giver, taker, min(has, 2 ** dice.randrange(has.bit_length())))
    first = dice.randrange(groups)
    last = dice.randrange(first, groups) if kind < 0.8 else first
    server = dice.choice((None, *used))
    servers = tuple(server if first <= group <= last else each for group, each in enumerate(strategy.servers))
    return replace(strategy, servers=servers)


def _neighbours(problem: Problem, strategy: SplitStrategy) -> Iterator[SplitStrategy]:
    """Every small change: samples from one kind of device to another, another way of exchange for one or all groups."""
    devices = range(len(problem.devices))
    kinds = dict.fromkeys(each.kind for each in problem.devices.all)
    for one, other in permutations(kinds, 2):
        for count in _sizes(
            max(n for n, d in zip(strategy.samples, problem.devices.all, strict=True) if d.kind == one)
        ):
            yield _shifted(problem, strategy, one, other, count)
    for giver in strategy.used:
        has = strategy.samples[giver]
        for taker in devices:
            if taker != giver:
                yield from (_moved(strategy, giver, taker, count) for count in _sizes(has))
    for server in (None, *strategy.used):
        yield replace(strategy, servers=(server,) * len(problem.groups))
        for group, now in enumerate(strategy.servers):
            if now != server:
                yield replace(strategy, servers=(*strategy.servers[:group], server, *strategy.servers[group + 1 :]))


def _sizes(whole: int) -> Iterable[int]:
    """The whole, and all powers of two below it."""
    return dict.fromkeys([whole, *(2**power for power in range(whole.bit_length() - 1, -1, -1))] if whole else [])


@dataclass(frozen=True)
class Planned:
    """A strategy and its predicted step."""

    name: str
    strategy: SplitStrategy
    step: SimulatedStep | None
    """The step; None: it does not fit into the memory of a device."""


@dataclass(frozen=True)
class SplitPlan:
    """The best strategy found, and the uniform plans for comparison."""

    problem: Problem
    best: Planned
    uniform: tuple[Planned, ...]


def make_plan(
    problem: Problem, seed: int = 0, evaluations: int = EVALUATIONS, advance: Advance = lambda done, total: None
) -> SplitPlan:
    """Searches and compares. Raises `UserError` if all devices together have too little memory for the batch."""
    best = search(problem, seed, evaluations, advance)
    return SplitPlan(
        problem,
        Planned("plan", best, simulate(problem, best)),
        tuple(
            Planned(name, strategy, simulate(problem, strategy) if fits(problem, strategy) else None)
            for name, strategy in uniform(problem).items()
        ),
    )
