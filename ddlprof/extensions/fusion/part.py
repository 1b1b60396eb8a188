"""Trials of a sweep that could train as one: each training in a process of its own, one after another or in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import torch

from ddlprof.extensions.fusion.apart import Remote, apart
from ddlprof.extensions.fusion.equality import NotEqual, checked
from ddlprof.extensions.fusion.halving import halve
from ddlprof.extensions.fusion.hyperparameters import chunks
from ddlprof.extensions.fusion.loop import GroupResults
from ddlprof.extensions.fusion.planner import NOT_TWO, PartSpec, Planner, group_training
from ddlprof.extensions.fusion.results import Trial, TrialGroup
from ddlprof.extensions.fusion.traced import Untraceable
from ddlprof.extensions.fusion.training import TrainingMode

_LONG_S = 60.0
"""Seconds of training from which on it is compared with processes side by side, whose start takes seconds."""
_NOT_TRACED = "forward or the loss is not the same at each step, so it was not recorded, which is slower"
_NOT_HALVED = "no successive halving, for which all models have to be held: each trial was trained to its end"
Advance = Callable[[int, int], None]
"""Called with the number of steps done and of all steps, as far as known."""


@dataclass
class _Group:
    """Trials that train in one process."""

    remote: Remote
    numbers: list[int]
    """Those that have not ended."""

    def advance(self, until: int | None, step_done: Callable[[int], None]) -> None:
        self.numbers = self.remote.call("advance", until, told=step_done)

    def scores(self) -> list[float]:
        return self.remote.call("scores")  # type: ignore[no-any-return]

    def leave(self, places: Sequence[int], why: str) -> None:
        self.remote.call("leave", places, why)
        self.numbers = [number for place, number in enumerate(self.numbers) if place not in set(places)]

    def join(self, other: _Group) -> None:
        self.remote.call("take", other.remote.call("hand_over"))
        self.numbers, other.numbers = self.numbers + other.numbers, []


class FusedPart:
    """Plans, checks and trains the trials of one part, and measures what that gained."""

    def __init__(self, spec: PartSpec, way: str, device: torch.device) -> None:
        """`way`: how processes are started (`apart.way_of_processes`)."""
        self._spec, self._way, self._device, self._options = spec, way, device, spec.options

    def trained(self, advance: Advance) -> tuple[TrialGroup, list[Trial]]:
        """How the trials were trained, and what came out. A dry run only plans and checks.

        Where forward changes between steps, or models as one are others, all is done again in another way: what is
        predicted is of the way that is taken.
        """
        mode = TrainingMode()
        while True:
            with closing(self._apart(Planner, self._spec, mode)) as planner:
                part, mode = planner.call("planned")
            try:
                if part.fuse:
                    groups = chunks(part.trials, part.at_once)
                    part = replace(part, equality=checked(self._spec, self._apart, groups, mode))
                if self._options.dry_run:
                    return part, []
                return self._carried_out(part, mode, advance)
            except Untraceable as error:
                mode = mode.without(error)
            except NotEqual as error:
                reason = f"cannot be fused: as one it is another model: {error}"
                part = TrialGroup(part.values, part.trials, reason=reason)
                return (part, []) if self._options.dry_run else self._carried_out(part, mode, advance)

    def _apart(self, make: Callable[..., object], *given: object) -> Remote:
        return apart(self._way, self._device, make, *given)

    def _group(self, numbers: list[int], mode: TrainingMode, fuse: bool) -> Remote:
        return self._apart(group_training, self._spec, numbers, mode, fuse)

    def _carried_out(self, part: TrialGroup, mode: TrainingMode, advance: Advance) -> tuple[TrialGroup, list[Trial]]:
        groups = chunks(self._spec.numbers, part.at_once)
        begin = time.perf_counter()
        notes = list(part.notes)
        halving = self._options.halving
        if halving is not None and part.reason == NOT_TWO:
            notes.append(_NOT_HALVED)
            halving = None
        if halving is not None and len(self._spec.numbers) > 1:
            rungs = halving.rungs(len(self._spec.numbers), mode.steps or 1)
            found = self._halved(groups, part, mode, rungs, advance)
        else:
            found = [
                self._to_the_end(group, place, len(groups), part, mode, advance) for place, group in enumerate(groups)
            ]
        outcomes = {number: one for each in found for number, one in each.outcomes.items()}
        values = self._spec.trials
        trials = [Trial(n, values[n], part.fuse, **vars(outcomes[n])) for n in self._spec.numbers]
        notes += [note for each in found for note in each.notes]
        if part.fuse and not mode.traced:
            notes.append(_NOT_TRACED)
        peaks = [each.peak_memory_bytes for each in found if each.peak_memory_bytes is not None]
        part = replace(
            part, training_s=time.perf_counter() - begin, peak_memory_bytes=max(peaks, default=None),
            notes=tuple(notes),
        )  # fmt: skip
        if not part.fuse or not self._options.is_timed:
            return part, trials
        beside = self._options.beside is not None or (part.training_s or 0.0) > _LONG_S
        with closing(self._apart(Planner, self._spec, mode)) as planner:
            return replace(part, measured=planner.call("measured", part.at_once, beside)), trials

    def _to_the_end(
        self, group: list[int], place: int, groups: int, part: TrialGroup, mode: TrainingMode, advance: Advance
    ) -> GroupResults:
        each = self._options.length.steps or mode.steps or 0
        with closing(self._group(group, mode, part.fuse)) as remote:
            remote.call("advance", None, told=lambda done: advance(place * each + done, groups * each))
            return remote.call("results")  # type: ignore[no-any-return]

    def _halved(
        self, groups: Sequence[list[int]], part: TrialGroup, mode: TrainingMode, rungs: Sequence[int], advance: Advance
    ) -> list[GroupResults]:
        assert self._options.halving is not None
        with ExitStack() as stack:
            started = []
            for numbers in groups:
                remote = stack.enter_context(closing(self._group(numbers, mode, part.fuse)))
                started.append(_Group(remote, numbers))

            def between(group: _Group) -> None:
                if len(groups) > 1:
                    group.remote.call("pause")

            left = halve(
                started, self._options.halving, rungs, between, lambda going: _regrouped(going, part),
                lambda done: advance(done, 0),
            )  # fmt: skip
            for group in left:
                group.advance(None, lambda done: advance(done, 0))
            return [group.remote.call("results") for group in started]


def _regrouped(groups: Sequence[_Group], part: TrialGroup) -> list[_Group]:
    """The groups that train as one, joined as far as so many models may train at once."""
    if not part.fuse:
        return list(groups)
    found: list[_Group] = []
    for group in groups:
        last = found[-1] if found else None
        if last is not None and len(last.numbers) + len(group.numbers) <= part.at_once:
            last.join(group)
        else:
            found.append(group)
    return found
