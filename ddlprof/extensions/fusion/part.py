"""Trials of a sweep that could train as one: how they are trained, and what that gains."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ddlprof.base.cores import available_cores
from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.halving import Halving, halve
from ddlprof.extensions.fusion.hyperparameters import Values, chunks
from ddlprof.extensions.fusion.loop import GroupTraining, ModelResult, SweepLength, count_steps, train
from ddlprof.extensions.fusion.memory import (
    SAFE_SHARE,
    bytes_per_model,
    fits_memory,
    forget_peak,
    free_bytes,
    kept_by,
    most_that_fit,
    peak_bytes,
)  # fmt: skip
from ddlprof.extensions.fusion.prediction import fit, interleaved, sizes_to_time, verdict, with_threads
from ddlprof.extensions.fusion.results import FusionPrediction, FusionTimes, Trial, TrialGroup
from ddlprof.extensions.fusion.saving import save
from ddlprof.extensions.fusion.side_by_side import time_beside
from ddlprof.extensions.fusion.task import Task, TaskSpec
from ddlprof.extensions.fusion.traced import Untraceable
from ddlprof.extensions.fusion.training import Alone, FusedTraining, TrainingMode
from ddlprof.extensions.fusion.unfusible import Unfusible, check_same, find_unfusible

T = TypeVar("T")
_TIMED_BATCHES = 4
_BESIDE_STEPS = 60
_LONG_S = 60.0
"""Seconds of training from which on it is compared with processes side by side, whose start takes seconds."""
_NOT_TRACED = "forward is not the same at each step, so it was not recorded, which is slower"
_NOT_TWO = "two models do not fit into memory"
_NOT_HALVED = "no successive halving, for which all models have to be held: each trial was trained to its end"
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
    cuda_graph: bool = False
    """Whether to replay steps as CUDA graphs."""
    draws: int | None = None
    """The number of trials that are drawn; None: every combination."""
    halving: Halving | None = None
    """How trials are ended that are worse than others; None: they are not."""
    is_timed: bool = True
    """Whether steps are timed, to decide and to report. If not, what can be fused is fused."""
    budget_s: float = 2.0
    """Seconds for timing steps, once before and once after the training."""


def _threads_of_each(processes: int) -> int:
    return max(1, (available_cores() or 1) // processes)


class FusedPart:
    """Trials that agree on everything that models trained as one must share."""

    def __init__(
        self, task: Task, trials: Sequence[Values], common: Values, numbers: list[int], options: FuseOptions,
        names: TaskSpec | None = None,
    ) -> None:  # fmt: skip
        """`names`: those of the task, for processes side by side; without them there are none."""
        self._names, self._task, self._trials = names, task, trials
        self._common, self._numbers, self._options = common, numbers, options
        self._batches: list[Any] = []
        self._traced = True
        self._steps: int | None = None
        """All steps of a training, where that has to be known."""
        self._notes: list[str] = []
        """What could not be done for this part. Results are shown all the same."""

    def planned(self) -> TrialGroup:
        """How these trials will be trained, and why."""
        part = TrialGroup(self._common, tuple(self._numbers))
        self._alone(self._numbers[0])  # finds errors of the user's code before anything is timed
        wanted = _TIMED_BATCHES * self._task.grad_accum
        self._batches = [batch for batch, _ in itertools.islice(self._task.batches(self._common), wanted)]
        if not self._batches:
            raise UserError(f"{self._task.data_name} gave no batches")
        if self._task.schedule is not None or self._options.halving is not None:
            self._steps = count_steps(self._task, self._common, self._options.length)
        if self._options.halving is not None:
            rungs = self._options.halving.rungs(len(self._numbers), self._steps or 1)  # raises if the first is too late
            if not rungs:
                self._notes.append(_TOO_FEW)
        self._step(self._alone(self._numbers[0]))()
        if len(self._numbers) == 1:
            return replace(part, reason="no other trial has these values")
        if self._options.max_b == 1:
            return replace(part, reason="--max-models 1")
        try:
            notes = find_unfusible(self._try_two)
        except Unfusible as error:
            return replace(part, reason=f"cannot be fused: {error}")
        at_once = self._most_at_once()
        if at_once < 2:
            return replace(part, reason=_NOT_TWO)
        at_once = max(map(len, chunks(self._numbers, at_once)))
        part = replace(part, notes=tuple(notes))
        if not self._options.is_timed:
            return replace(part, at_once=at_once, fuse=True, reason="not timed")
        prediction = self._recorded_or_not(lambda: self._predict(at_once))
        fuse, reason = verdict(prediction)
        if self._options.force and not fuse:
            fuse, reason = True, f"{reason}; fused because of --force"
        return replace(part, at_once=at_once if fuse else 1, fuse=fuse, reason=reason, prediction=prediction)

    def _try_two(self) -> None:
        """Checks that a step of two models as one gives the gradients of each model by itself."""
        two = self._numbers[:2]
        self._step(self._mapped(two))()
        check_same(self._task, [self._trials[number] for number in two], self._batches[0])

    def trained(self, part: TrialGroup, advance: Callable[[int, int], None]) -> tuple[TrialGroup, list[Trial]]:
        """Trains all trials, then measures the gain of fusing them."""
        groups = chunks(self._numbers, part.at_once)
        begin = time.perf_counter()
        forget_peak(self._task.device)
        halving = self._options.halving
        if halving is not None and part.reason == _NOT_TWO:
            self._notes.append(_NOT_HALVED)
            halving = None
        if halving is not None and len(self._numbers) > 1:
            group_trainings = self._recorded_or_not(lambda: self._halved(groups, part, halving, advance))
        else:
            group_trainings = self._one_after_another(groups, part.fuse, advance)
        outcomes = {
            number: one for group_training in group_trainings for number, one in group_training.outcomes.items()
        }
        found = [self._trial(number, part.fuse, outcomes[number]) for number in self._numbers]
        for reason in sorted(
            {each for group_training in group_trainings for each in group_training.notes if each is not None}
        ):
            if self._traced:
                self._notes.append(f"no CUDA graph: {reason}")
        if part.fuse and not self._traced:
            self._notes.append(_NOT_TRACED)
        part = replace(
            part, training_s=time.perf_counter() - begin, peak_memory_bytes=peak_bytes(self._task.device),
            notes=(*part.notes, *self._notes),
        )  # fmt: skip
        if not part.fuse or not self._options.is_timed:
            return part, found
        beside = self._options.beside is not None or (part.training_s or 0.0) > _LONG_S
        return replace(part, measured=self._recorded_or_not(lambda: self._measure(part.at_once, beside))), found

    def _one_after_another(
        self, groups: Sequence[list[int]], fuse: bool, advance: Callable[[int, int], None]
    ) -> list[GroupTraining]:
        each = self._options.length.steps or self._steps or 0
        group_trainings = []
        for place, group in enumerate(groups):

            def attempt(group: list[int] = group, before: int = place * each) -> GroupTraining:
                group_training = self._group_training(group, fuse)
                train(group_training, lambda done: advance(before + done, len(groups) * each))
                return group_training

            group_training = self._recorded_or_not(attempt)
            self._save(group_training)
            group_trainings.append(group_training)
        return group_trainings

    def _halved(
        self, groups: Sequence[list[int]], part: TrialGroup, halving: Halving, advance: Callable[[int, int], None]
    ) -> list[GroupTraining]:
        if len(groups) > 1 or (self._options.evaluate and self._task.evaluation is None):
            self._task.check_interruptible(self._common)
        done = itertools.count(1)

        def between(group_training: GroupTraining) -> None:
            if len(groups) > 1:
                group_training.pause()

        group_trainings = []
        for group in groups:
            group_trainings.append(self._group_training(group, part.fuse))
            between(group_trainings[-1])
        rungs = halving.rungs(len(self._numbers), self._steps or 1)
        left = halve(
            group_trainings, halving, rungs, between, lambda going: _regrouped(going, part),
            lambda _: advance(next(done), 0),
        )  # fmt: skip
        for group_training in left:
            train(group_training, lambda _: advance(next(done), 0))
        for group_training in group_trainings:
            self._save(group_training)
        return group_trainings

    def _save(self, group_training: GroupTraining) -> None:
        if self._options.save is not None and group_training.models is not None:
            self._notes += save(self._options.save, group_training.models)
            group_training.models = None

    def _group_training(self, group: Sequence[int], fuse: bool) -> GroupTraining:
        training = self._together(group) if fuse else self._alone(group[0])
        options = self._options
        return GroupTraining(
            self._task, training, group, self._common, options.length, options.evaluate, options.save is not None
        )

    def _recorded_or_not(self, attempt: Callable[[], T]) -> T:
        """The result of `attempt`. If forward changes between steps, repeats it and uses no recordings from now on."""
        try:
            return attempt()
        except Untraceable:
            self._traced = False
            return attempt()

    def _trial(self, number: int, fused: bool, outcome: ModelResult) -> Trial:
        return Trial(
            number, self._trials[number], fused, outcome.steps, outcome.loss, outcome.eval_loss, outcome.metric,
            outcome.diverged, outcome.stopped,
        )  # fmt: skip

    def _together(self, numbers: Sequence[int]) -> FusedTraining:
        trials = [self._trials[number] for number in numbers]
        return FusedTraining(self._task, trials, TrainingMode(self._traced, self._options.cuda_graph, self._steps))

    def _mapped(self, numbers: Sequence[int]) -> FusedTraining:
        """The same for a single step, which is not worth a recording."""
        return FusedTraining(
            self._task, [self._trials[number] for number in numbers], TrainingMode(False, steps=self._steps)
        )

    def _alone(self, number: int) -> Alone:
        return Alone(self._task, self._trials[number], self._steps)

    def _step(self, training: FusedTraining | Alone) -> Callable[[], object]:
        batches = itertools.cycle(self._batches)
        return lambda: training.step(*itertools.islice(batches, self._task.grad_accum))

    def _most_at_once(self) -> int:
        wanted = min(len(self._numbers), self._options.max_b or len(self._numbers))
        alone = self._alone(self._numbers[0])
        kept = kept_by(self._step(alone))
        first = self._trials[self._numbers[0]]
        model = self._task.model(first)
        parameters = sum(each.nbytes for each in model.parameters() if each.requires_grad)
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

    def _measure(self, models: int, beside: bool) -> FusionTimes:
        numbers = self._numbers[:models]
        variants = {True: self._step(self._together(numbers)), False: self._step(self._alone(numbers[0]))}
        found = interleaved(variants, self._options.budget_s, self._task.device)
        measured = FusionTimes(models, found[True], found[False])
        processes = self._processes(models)
        if processes < 2 or not beside or self._names is None:
            return measured
        trials = [self._trials[number] for number in numbers[:processes]]
        with suppress(UserError):  # only the other comparison is then known
            times = time_beside(self._names, trials, _threads_of_each(processes), _BESIDE_STEPS, self._steps)
            return replace(measured, beside=processes, beside_s=times[0], start_s=times[1])
        return measured


def _regrouped(group_trainings: Sequence[GroupTraining], part: TrialGroup) -> list[GroupTraining]:
    """The courses that train as one, joined as far as so many models may train at once."""
    if not part.fuse:
        return list(group_trainings)
    found: list[GroupTraining] = []
    for group_training in group_trainings:
        last = found[-1] if found else None
        if last is not None and len(last.numbers) + len(group_training.numbers) <= part.at_once:
            last.join(group_training)
        else:
            found.append(group_training)
    return found
