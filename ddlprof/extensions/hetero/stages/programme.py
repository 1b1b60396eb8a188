"""The dynamic programme over cuts and devices, on a lower bound of the step, and what lies below a known step.

The bound of a stage and those after it follows from its own seconds and the bound of those after it, so the best ways
to divide the last layers serve every way to divide the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ddlprof.extensions.hetero.simulation import transfer_s
from ddlprof.extensions.hetero.stages.problem import (
    GroupCost,
    Stage,
    StagedProblem,
    StagedStrategy,
    shares_of,
)

Free: TypeAlias = Any
"""The devices that are left: their numbers by machine, or a place in an order."""
Groups: TypeAlias = Callable[[Free], "list[tuple[tuple[int, ...], Free]]"]
"""The groups that a stage could run on, each with what is left then."""


class _Suffix(NamedTuple):
    """The stages from one to the last."""

    passes_s: float
    """The bound until the last backward of its first stage has ended."""
    all_s: float
    """The bound until all of them are updated."""
    moves_s: float
    """Seconds of what its first stage receives for one micro-batch."""
    stages: tuple[Stage, ...]


class _StageSeconds(NamedTuple):
    forward_s: float
    """Of one micro-batch, as `backward_s`."""
    backward_s: float
    update_s: float
    """From its last backward to the end of its update."""


class _Choice(NamedTuple):
    """One stage behind another one."""

    stage: Stage
    seconds: _StageSeconds
    from_before_s: float
    """Seconds of what it receives for one micro-batch."""
    left: Free
    """The devices that are left for the stages after it."""

    def joined(self, micro_batches: int, rest: _Suffix | None) -> _Suffix:
        """It in front of those after it."""
        return _joined(self.seconds, micro_batches, self.from_before_s, rest, self.stage)


def _seconds(costs: GroupCost, first: int, end: int) -> _StageSeconds:
    return _StageSeconds(*costs.passes_s(first, end), costs.update_s(first, end))


def _joined(
    each: _StageSeconds, micro_batches: int, from_before_s: float, rest: _Suffix | None, stage: Stage
) -> _Suffix:
    """A stage in front of the others.

    The chain is that of the first micro-batch to a stage, of all passes and receipts of that stage one after another,
    and of the last micro-batch back: no step is shorter.
    """
    once_s, onward_s = each.forward_s + each.backward_s, rest.moves_s if rest else 0.0
    own_s = micro_batches * (once_s + from_before_s + onward_s)
    if rest is None:
        return _Suffix(own_s, own_s + each.update_s, from_before_s, (stage,))
    passes_s = max(own_s, from_before_s + once_s + onward_s + rest.passes_s)
    all_s = max(passes_s + each.update_s, from_before_s + each.forward_s + rest.all_s)
    return _Suffix(passes_s, all_s, from_before_s, (stage, *rest.stages))


@dataclass
class Programme:
    """The dynamic programme for one number of micro-batches."""

    problem: StagedProblem
    micro_batches: int
    groups: Groups
    best_s: float
    """Strategies whose bound is not below it are left out."""
    _known: dict[Any, list[_Suffix]] = field(default_factory=dict)
    _costs: dict[tuple[int, ...], GroupCost | None] = field(default_factory=dict)
    _seconds: dict[tuple[tuple[int, ...], int, int], _StageSeconds] = field(default_factory=dict)

    def suffixes(self, free: Free, first: int, to_last: int, before: int | None) -> list[_Suffix]:
        """The best ways to divide the layers from `first` on into so many stages on free devices, behind a stage whose
        leader is `before` (None: there is none)."""
        machine = None if before is None else self.problem.devices.all[before].machine
        key = free, first, to_last, machine
        if key not in self._known:
            self._known[key] = _unbeaten(self._tried(free, first, to_last, before))
        return self._known[key]

    def _tried(self, free: Free, first: int, to_last: int, before: int | None) -> Iterator[_Suffix]:
        for choice in self._choices(free, first, to_last, before):
            for suffix in self._behind(choice, to_last):
                found = choice.joined(self.micro_batches, suffix)
                if found.all_s < self.best_s:
                    yield found

    def _behind(self, choice: _Choice, to_last: int) -> Sequence[_Suffix | None]:
        if to_last == 1:
            return (None,)
        return self.suffixes(choice.left, choice.stage.end, to_last - 1, choice.stage.devices[0])

    def strategies(self, free: Free, stages: int) -> Iterator[StagedStrategy]:
        """All with so many stages whose bound is below `best_s`, which may fall meanwhile; the lowest bounds first, as
        far as the first stages decide."""
        yield from self._below([], free, 0, stages, None)

    def _below(
        self, ahead: list[_Choice], free: Free, first: int, to_last: int, before: int | None
    ) -> Iterator[StagedStrategy]:
        options: list[tuple[float, _Choice]] = []
        for choice in self._choices(free, first, to_last, before):
            bounds = [self._bound(ahead, choice, suffix) for suffix in self._behind(choice, to_last)]
            if bounds and min(bounds) < self.best_s:
                options.append((min(bounds), choice))
        for bound, choice in sorted(options, key=lambda option: option[0]):
            if bound >= self.best_s:
                return
            if to_last == 1:
                yield StagedStrategy((*(each.stage for each in ahead), choice.stage), self.micro_batches)
            else:
                yield from self._below(
                    [*ahead, choice], choice.left, choice.stage.end, to_last - 1, choice.stage.devices[0]
                )

    def _bound(self, ahead: Sequence[_Choice], choice: _Choice, suffix: _Suffix | None) -> float:
        for each in (choice, *ahead[::-1]):
            suffix = each.joined(self.micro_batches, suffix)
        assert suffix is not None
        return suffix.all_s

    def _choices(self, free: Free, first: int, to_last: int, before: int | None) -> Iterator[_Choice]:
        """Every next stage that fits into memory."""
        layers = len(self.problem.layers)
        for group, left in self.groups(free):
            costs = self._of(group)
            if costs is None:
                continue
            size = sum(costs.samples) * self.problem.layers[first].input_bytes
            leader = costs.devices[0]
            into_s = 0.0 if before is None else transfer_s(self.problem.devices, before, leader, size)
            for end in (layers,) if to_last == 1 else range(first + 1, layers - to_last + 2):
                if self.micro_batches * (costs.computes_s(first, end) + into_s) >= self.best_s:
                    break
                if costs.fits(first, end, to_last):
                    stage = Stage(first, end, costs.devices, costs.samples)
                    yield _Choice(stage, self._stage(costs, first, end), into_s, left)

    def _stage(self, costs: GroupCost, first: int, end: int) -> _StageSeconds:
        key = costs.devices, first, end
        if key not in self._seconds:
            self._seconds[key] = _seconds(costs, first, end)
        return self._seconds[key]

    def _of(self, group: tuple[int, ...]) -> GroupCost | None:
        """The costs of a group, whose leader is the device with the largest share; None: too few samples."""
        if group not in self._costs:
            samples = shares_of(self.problem, group, self.problem.batch // self.micro_batches)
            if samples is None:
                self._costs[group] = None
            else:
                pairs = sorted(zip(group, samples, strict=True), key=lambda pair: (-pair[1], pair[0]))
                devices, shares = tuple(device for device, _ in pairs), tuple(share for _, share in pairs)
                self._costs[group] = GroupCost(self.problem, devices, shares, self.micro_batches)
        return self._costs[group]


def _unbeaten(found: Iterator[_Suffix]) -> list[_Suffix]:
    """Those that no other is as good as in all parts; of equal ones the first."""
    kept: list[_Suffix] = []
    for each in sorted(found, key=lambda suffix: suffix[:3]):
        if not any(one.all_s <= each.all_s and one.moves_s <= each.moves_s for one in kept):
            kept.append(each)
    return kept
