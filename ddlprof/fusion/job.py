"""Runs a sweep: groups its trials, predicts the gain of fusing, trains, and measures the gain."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ddlprof.base.cores import available_cores
from ddlprof.base.errors import UserError
from ddlprof.base.files import replacing
from ddlprof.fusion.hyperparameters import Value, Values, check_value, chunks, combinations, partition
from ddlprof.fusion.memory import (
    SAFE_SHARE,
    bytes_per_model,
    fits_memory,
    forget_peak,
    free_bytes,
    kept_by,
    most_that_fit,
    peak_bytes,
)  # fmt: skip
from ddlprof.fusion.prediction import fit, interleaved, sizes_to_time, verdict, with_threads
from ddlprof.fusion.results import Measured, Prediction, Result, Trial, TrialGroup
from ddlprof.fusion.side_by_side import time_beside
from ddlprof.fusion.task import SEED, Names, Task
from ddlprof.fusion.traced import Untraceable
from ddlprof.fusion.training import Alone, Length, Outcome, Together, train
from ddlprof.fusion.unfusible import Unfusible, check_same, find_unfusible, without_warnings

T = TypeVar("T")
_TIMED_BATCHES = 4
_BESIDE_STEPS = 60
_LONG_S = 60.0
"""Seconds of training from which on it is compared with processes side by side, whose start takes seconds."""
_NOT_TRACED = "forward is not the same at each step, so it was not recorded, which is slower"


@dataclass(frozen=True)
class Options:
    """How a sweep is trained."""

    length: Length
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
    budget_s: float = 2.0
    """Seconds for timing steps, once before and once after the training."""


Advance = Callable[[int, int], None]
"""Called with the number of steps done and of all steps, as far as known."""


def run(
    names: Names, sweeps: dict[str, list[Value]], options: Options, advance: Advance = lambda done, total: None
) -> Result:
    """Predicts, decides, trains and measures. Raises UserError for a sweep that cannot be trained at all."""
    trials = combinations(sweeps)
    task = names.load()
    task.check_names(sweeps)
    _check_values(task, trials)
    parameters = task.names()
    shared = {*parameters["the factory"], *parameters["the batches"]} - {SEED}
    result = Result(
        names.model, names.optimizer, names.device, torch.get_num_threads(), names.metric, [], [], not options.dry_run,
        names.precision,
    )  # fmt: skip
    with without_warnings():
        for common, numbers in partition(trials, shared):
            sweep = _Sweep(names, task, trials, common, numbers, options)
            part = sweep.planned()
            if not options.dry_run:
                part, trained = sweep.trained(part, advance)
                result.trials.extend(trained)
            result.parts.append(part)
    result.trials.sort(key=lambda trial: trial.number)
    return result


def _check_values(task: Task, trials: Sequence[Values]) -> None:
    for values in trials:
        for name, value in task.optimizer_values(values).items():
            check_value(name, value)
        if not isinstance(values.get(SEED, 0), int):
            raise UserError(f"--sweep {SEED}: {values[SEED]} is no whole number")


def _threads_of_each(processes: int) -> int:
    return max(1, (available_cores() or 1) // processes)


class _Sweep:
    """Trials that agree on everything that models trained as one must share."""

    def __init__(
        self, names: Names, task: Task, trials: Sequence[Values], common: Values, numbers: list[int], options: Options
    ) -> None:
        self._names, self._task, self._trials = names, task, trials
        self._common, self._numbers, self._options = common, numbers, options
        self._batches: list[Any] = []
        self._traced = True
        self._not_graphed: str | None = None
        self._unsaved: list[str] = []
        """Notes on models that could not be saved. Results are shown all the same."""

    def planned(self) -> TrialGroup:
        """How these trials will be trained, and why."""
        part = TrialGroup(self._common, tuple(self._numbers))
        self._alone(self._numbers[0])  # finds errors of the user's code before anything is timed
        self._batches = [batch for batch, _ in itertools.islice(self._task.batches(self._common), _TIMED_BATCHES)]
        if not self._batches:
            raise UserError(f"{self._task.data_name} gave no batches")
        self._alone(self._numbers[0]).step(self._batches[0])
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
            return replace(part, reason="two models do not fit into memory")
        at_once = max(map(len, chunks(self._numbers, at_once)))
        prediction = self._recorded_or_not(lambda: self._predict(at_once))
        fuse, reason = verdict(prediction)
        if self._options.force and not fuse:
            fuse, reason = True, f"{reason}; fused because of --force"
        return replace(
            part, at_once=at_once if fuse else 1, fuse=fuse, reason=reason, prediction=prediction, notes=tuple(notes)
        )

    def _try_two(self) -> None:
        """Checks that a step of two models as one gives the gradients of each model by itself."""
        two = self._numbers[:2]
        self._step(self._together(two))()
        check_same(self._task, [self._trials[number] for number in two], self._batches[0])

    def trained(self, part: TrialGroup, advance: Advance) -> tuple[TrialGroup, list[Trial]]:
        """Trains all trials, then measures the gain of fusing them."""
        groups = chunks(self._numbers, part.at_once)
        each = self._options.length.steps or 0
        before, begin, found = 0, time.perf_counter(), []
        forget_peak(self._task.device)

        def step_done(done: int) -> None:
            advance(before + done, len(groups) * each)

        for group in groups:
            outcomes = self._train(group, part.fuse, step_done)
            found += [self._trial(number, part.fuse, one) for number, one in zip(group, outcomes, strict=True)]
            before += each
        part = replace(
            part, training_s=time.perf_counter() - begin, peak_memory_bytes=peak_bytes(self._task.device),
            notes=(*part.notes, *self._unsaved),
        )  # fmt: skip
        if part.fuse and not self._traced:
            part = replace(part, notes=(*part.notes, _NOT_TRACED))
        elif part.fuse and self._not_graphed is not None:
            part = replace(part, notes=(*part.notes, f"no CUDA graph: {self._not_graphed}"))
        if not part.fuse:
            return part, found
        beside = self._options.beside is not None or (part.training_s or 0.0) > _LONG_S
        return replace(part, measured=self._recorded_or_not(lambda: self._measure(part.at_once, beside))), found

    def _train(self, group: Sequence[int], fuse: bool, step_done: Callable[[int], None]) -> list[Outcome]:
        def attempt() -> list[Outcome]:
            training = self._together(group) if fuse else self._alone(group[0])
            length, evaluate = self._options.length, self._options.evaluate
            outcomes = train(training, self._task, self._common, length, step_done, evaluate)
            if isinstance(training, Together):
                self._not_graphed = training.fused.not_graphed
            if self._options.save is not None:
                self._unsaved += save(self._options.save, dict(zip(group, training.models(), strict=True)))
            return outcomes

        return self._recorded_or_not(attempt)

    def _recorded_or_not(self, attempt: Callable[[], T]) -> T:
        """The result of `attempt`. If forward changes between steps, repeats it and uses no recordings from now on."""
        try:
            return attempt()
        except Untraceable:
            self._traced = False
            return attempt()

    def _trial(self, number: int, fused: bool, outcome: Outcome) -> Trial:
        return Trial(
            number, self._trials[number], fused, outcome.steps, outcome.loss, outcome.eval_loss, outcome.metric,
            outcome.diverged,
        )  # fmt: skip

    def _together(self, numbers: Sequence[int]) -> Together:
        trials = [self._trials[number] for number in numbers]
        return Together(self._task, trials, self._traced, self._options.cuda_graph)

    def _alone(self, number: int) -> Alone:
        return Alone(self._task, self._trials[number])

    def _step(self, training: Together | Alone) -> Callable[[], object]:
        batches = itertools.cycle(self._batches)
        return lambda: training.step(next(batches))

    def _most_at_once(self) -> int:
        wanted = min(len(self._numbers), self._options.max_b or len(self._numbers))
        alone = self._alone(self._numbers[0])
        kept = kept_by(self._step(alone))
        values = self._task.optimizer_values(self._trials[self._numbers[0]])
        model = self._task.model(self._trials[self._numbers[0]])
        parameters = sum(each.nbytes for each in model.parameters() if each.requires_grad)
        size = bytes_per_model(parameters, kept, self._task.optimizer, values)
        estimate = int(SAFE_SHARE * free_bytes(self._task.device) / max(1, size))

        def fits(models: int) -> bool:
            gc.collect()
            return fits_memory(self._task.device, lambda: self._step(self._together(self._numbers[:models]))())

        return most_that_fit(wanted, estimate, fits)

    def _predict(self, models: int) -> Prediction:
        ways: dict[int, Callable[[], object]] = {
            size: self._step(self._together(self._numbers[:size])) for size in sizes_to_time(models)
        }
        ways[0] = self._step(self._alone(self._numbers[0]))
        processes, device = self._processes(models), self._task.device
        is_compared = processes > 1 and device.type == "cpu"
        own = _threads_of_each(processes) if is_compared else 0
        if is_compared and own != torch.get_num_threads():
            ways[-1] = with_threads(own, ways[0])
        found = interleaved(ways, self._options.budget_s, device)
        points = tuple((size, seconds) for size, seconds in found.items() if size > 0)
        prediction = Prediction(models, points, *fit(points), found[0])
        if not is_compared:
            return prediction
        return replace(prediction, beside=processes, one_thread_s=found.get(-1, found[0]))

    def _processes(self, models: int) -> int:
        wanted = self._options.beside
        return min(models, (available_cores() or 1) if wanted is None else wanted)

    def _measure(self, models: int, beside: bool) -> Measured:
        numbers = self._numbers[:models]
        ways = {True: self._step(self._together(numbers)), False: self._step(self._alone(numbers[0]))}
        found = interleaved(ways, self._options.budget_s, self._task.device)
        measured = Measured(models, found[True], found[False])
        processes = self._processes(models)
        if processes < 2 or not beside:
            return measured
        trials = [self._trials[number] for number in numbers[:processes]]
        with suppress(UserError):  # only the other comparison is then known
            beside_s, start_s = time_beside(self._names, trials, _threads_of_each(processes), _BESIDE_STEPS)
            return replace(measured, beside=processes, beside_s=beside_s, start_s=start_s)
        return measured


def save(folder: Path, models: Mapping[int, nn.Module]) -> list[str]:
    """Writes `trial-N.pt` for each model, a state_dict for `torch.load`.

    Returns notes on models that could not be written.
    """
    failed = []
    for number, model in models.items():
        path = folder / f"trial-{number}.pt"
        try:
            with replacing(path) as temporary:
                torch.save(model.state_dict(), temporary)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            failed.append(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")
    return failed


def prepare(folder: Path) -> None:
    """Makes the folder before the training begins. Raises UserError if nothing can be written into it."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written to")
