"""How trials that could train as one will be trained, from steps that are tried, and what that gains.

All of this calls the user's data, model and loss, so it runs in a process of its own.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ddlprof.base.cores import available_cores
from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.halving import Halving
from ddlprof.extensions.fusion.hyperparameters import Values, chunks
from ddlprof.extensions.fusion.loop import GroupTraining, SweepLength, count_steps
from ddlprof.extensions.fusion.memory import (
    SAFE_SHARE,
    bytes_per_model,
    fits_memory,
    free_bytes,
    kept_by,
    most_that_fit,
)
from ddlprof.extensions.fusion.prediction import fit, interleaved, sizes_to_time, verdict, with_threads
from ddlprof.extensions.fusion.random_state import draws_undone
from ddlprof.extensions.fusion.results import FusionPrediction, FusionTimes, TrialGroup
from ddlprof.extensions.fusion.side_by_side import time_beside
from ddlprof.extensions.fusion.task import Task, TaskSpec
from ddlprof.extensions.fusion.traced import Untraceable
from ddlprof.extensions.fusion.training import Alone, FusedTraining, TrainingMode
from ddlprof.extensions.fusion.unfusible import Unfusible, find_unfusible, without_warnings

_TIMED_BATCHES = 4
_BESIDE_STEPS = 60
NOT_TWO = "two models do not fit into memory"
_TOO_FEW = "no successive halving: fewer trials than it ends at once, or too few steps"


@dataclass(frozen=True)
class FuseOptions:
    """How a sweep is trained."""

    length: SweepLength
    max_b: int | None = None
    """The most models to train at once; None: as many as fit into memory."""
    dry_run: bool = False
    force: bool = False
    """Whether to fuse even if a loss is expected."""
    evaluate: bool = False
    save: Path | None = None
    """The folder for the trained models; None: they are not saved."""
    beside: int | None = None
    """The number of processes to compare with; None: one for each processor, 0: none."""
    draws: int | None = None
    """The number of trials that are drawn; None: every combination."""
    halving: Halving | None = None
    """How trials are ended that are worse than others; None: they are not."""
    is_timed: bool = True
    """Whether steps are timed, to decide and to report. If not, what can be fused is fused."""
    budget_s: float = 2.0
    """Seconds for timing steps, once before and once after the training."""


@dataclass(frozen=True)
class PartSpec:
    """Trials that agree on everything that models trained as one must share, as a process has to know them."""

    source: Task | TaskSpec
    trials: Sequence[Values]
    """All of the sweep."""
    common: Values
    """The values on which they agree."""
    numbers: list[int]
    options: FuseOptions
    names: TaskSpec | None = None
    """The names of the task, for processes side by side; without them there are none."""

    def task(self) -> Task:
        """The task, imported anew if only its names are known, which draws nothing."""
        if isinstance(self.source, Task):
            return self.source
        with draws_undone(torch.device("cpu")):
            return self.source.load()

    def values(self, numbers: Sequence[int]) -> list[Values]:
        """Those of some trials."""
        return [self.trials[number] for number in numbers]


def group_training(spec: PartSpec, group: Sequence[int], mode: TrainingMode, fuse: bool) -> GroupTraining:
    """The training of some trials, as one or, if it is one trial, by itself."""
    task, options, values = spec.task(), spec.options, spec.values(group)
    with without_warnings():
        training = FusedTraining(task, values, mode) if fuse else Alone(task, values[0], mode.steps)
    return GroupTraining(task, training, group, spec.common, options.length, options.evaluate, options.save)


class Planner:
    """Tries and times steps."""

    def __init__(self, spec: PartSpec, mode: TrainingMode) -> None:
        """`mode`: that of an earlier plan, or the usual one."""
        self._spec, self._mode, self._options, self._numbers = spec, mode, spec.options, spec.numbers
        self._task = spec.task()
        self._batches: list[Any] = []

    def planned(self) -> tuple[TrialGroup, TrainingMode]:
        """How these trials will be trained, and why. Raises UserError for what cannot be trained at all."""
        part = TrialGroup(self._spec.common, tuple(self._numbers))
        alone = self._alone(self._numbers[0])  # finds errors of the user's code before anything is timed
        self._load_batches()
        notes = self._count_steps()
        self._step(alone)()
        if self._task.metric is not None:
            alone.evaluate(self._batches[0])
        part = replace(part, notes=tuple(notes))
        while True:
            with without_warnings():
                try:
                    return self._decided(part), self._mode
                except Untraceable as error:  # the next way is tried
                    self._mode = self._mode.without(error)

    def _load_batches(self) -> None:
        wanted = _TIMED_BATCHES * self._task.grad_accum
        self._batches = [batch for batch, _ in itertools.islice(self._task.batches(self._spec.common), wanted)]
        if not self._batches:
            raise UserError(f"{self._task.data_name} gave no batches")

    def _count_steps(self) -> list[str]:
        """Counts the steps of a training, where they have to be known. Returns notes."""
        halving, length = self._options.halving, self._options.length
        if self._task.schedule is None and halving is None:
            return []
        steps = count_steps(self._task, self._spec.common, length)
        self._mode = replace(self._mode, steps=steps)
        if halving is None:
            return []
        if self._options.evaluate and self._task.evaluation is None:
            self._task.check_interruptible(self._spec.common)
        rungs = halving.rungs(len(self._numbers), steps or 1)  # raises if the first is too late
        return [] if rungs else [_TOO_FEW]

    def _decided(self, part: TrialGroup) -> TrialGroup:
        if len(self._numbers) == 1:
            return replace(part, reason="no other trial has these values")
        if self._options.max_b == 1:
            return replace(part, reason="--max-models 1")
        try:
            part = replace(part, notes=(*part.notes, *find_unfusible(self._try_two)))
        except Unfusible as error:
            return replace(part, reason=f"cannot be fused: {error}")
        at_once = self._most_at_once()
        if at_once < 2:
            return replace(part, reason=NOT_TWO)
        at_once = max(map(len, chunks(self._numbers, at_once)))
        if not self._options.is_timed:
            return replace(part, at_once=at_once, fuse=True, reason="not timed")
        prediction = self._predict(at_once)
        fuse, reason = verdict(prediction)
        if self._options.force and not fuse:
            fuse, reason = True, f"{reason}; fused because of --force"
        return replace(part, at_once=at_once if fuse else 1, fuse=fuse, reason=reason, prediction=prediction)

    def _try_two(self) -> None:
        """Finds out whether a step of two models as one can be computed, and recorded."""
        two = self._mapped(self._numbers[:2])
        self._step(two)()
        if self._mode.shared is None:
            self._mode = replace(self._mode, shared=two.shared)
        if self._mode.traced:
            recorded = self._together(self._numbers[:2])
            self._step(recorded)()
            self._mode = replace(self._mode, traced=recorded.fused.recordings > 0)

    def _together(self, numbers: Sequence[int]) -> FusedTraining:
        return FusedTraining(self._task, self._spec.values(numbers), self._mode)

    def _mapped(self, numbers: Sequence[int]) -> FusedTraining:
        """The same for a single step, which is not worth a recording."""
        mode = replace(self._mode, traced=False)
        return FusedTraining(self._task, self._spec.values(numbers), mode)

    def _alone(self, number: int) -> Alone:
        return Alone(self._task, self._spec.trials[number], self._mode.steps)

    def _step(self, training: FusedTraining | Alone) -> Callable[[], object]:
        batches = itertools.cycle(self._batches)
        return lambda: training.step(*itertools.islice(batches, self._task.grad_accum))

    def _most_at_once(self) -> int:
        wanted = min(len(self._numbers), self._options.max_b or len(self._numbers))
        alone = self._alone(self._numbers[0])
        kept = kept_by(self._step(alone))
        first = self._spec.trials[self._numbers[0]]
        parameters = sum(each.nbytes for each in alone.models()[0].parameters() if each.requires_grad)
        values = self._task.optimizer_values(first)
        size = bytes_per_model(parameters, kept, self._task.optimizer_of(first), values)
        estimate = int(SAFE_SHARE * free_bytes(self._task.device) / max(1, size))
        tried: list[int] = []

        def fits(models: int) -> bool:
            if tried:  # a seventh of a second, which the first try, mostly the only one, does not need
                gc.collect()
            tried.append(models)
            return fits_memory(self._task.device, lambda: self._step(self._mapped(self._numbers[:models]))())

        return most_that_fit(wanted, estimate, fits)

    def _predict(self, models: int) -> FusionPrediction:
        variants: dict[int, Callable[[], object]] = {
            size: self._step(self._together(self._numbers[:size])) for size in sizes_to_time(models)
        }
        variants[0] = self._step(self._alone(self._numbers[0]))
        processes, device = self._processes(models), self._task.device
        is_compared = processes > 1 and device.type == "cpu"
        own = _threads_of_each(processes) if is_compared else 0
        if is_compared and own != torch.get_num_threads():
            variants[-1] = with_threads(own, variants[0])
        found = interleaved(variants, self._options.budget_s, device)
        points = tuple((size, seconds) for size, seconds in found.items() if size > 0)
        prediction = FusionPrediction(models, points, *fit(points), found[0])
        if not is_compared:
            return prediction
        return replace(prediction, beside=processes, one_thread_s=found.get(-1, found[0]))

    def _processes(self, models: int) -> int:
        wanted = self._options.beside
        return min(models, (available_cores() or 1) if wanted is None else wanted)

    def measured(self, models: int, beside: bool) -> FusionTimes:
        """The gain of a step of so many models. `beside`: whether processes side by side are started, too."""
        self._load_batches()
        numbers = self._numbers[:models]
        with without_warnings():
            variants = {True: self._step(self._together(numbers)), False: self._step(self._alone(numbers[0]))}
            found = interleaved(variants, self._options.budget_s, self._task.device)
        measured = FusionTimes(models, found[True], found[False])
        processes, names = self._processes(models), self._spec.names
        if processes < 2 or not beside or names is None:
            return measured
        trials = self._spec.values(numbers[:processes])
        with suppress(UserError):  # only the other comparison is then known
            times = time_beside(names, trials, _threads_of_each(processes), _BESIDE_STEPS, self._mode.steps)
            return replace(measured, beside=processes, beside_s=times[0], start_s=times[1])
        return measured


def _threads_of_each(processes: int) -> int:
    return max(1, (available_cores() or 1) // processes)
