"""The loop over batches: trials that train together or alone, of which some may end before the others."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.apart import apart, way_of_processes
from ddlprof.extensions.fusion.first_steps import FirstSteps, gradients_of
from ddlprof.extensions.fusion.hyperparameters import Values
from ddlprof.extensions.fusion.memory import peak_bytes
from ddlprof.extensions.fusion.results import DIVERGED, HALVING
from ddlprof.extensions.fusion.saving import save
from ddlprof.extensions.fusion.stackable import tensors_of
from ddlprof.extensions.fusion.task import Task
from ddlprof.extensions.fusion.training import FusedTraining, Training, TrainingMode, TrialState

_LOOK = 50
"""Steps between looks for trials that have diverged. A GPU is waited for at each."""
_WORTH_STEPS = 100
"""Steps that have to be left for models to leave a group: the others are stacked and recorded anew."""
_LEAST_RECENT = 10
"""Steps at least whose losses are averaged for a trial that ends early."""
Positions = Sequence[int]
"""Models of a training, by their place in it."""


@dataclass(frozen=True)
class SweepLength:
    """The length of a training in steps, or in epochs if steps are not given."""

    steps: int | None
    epochs: int


@dataclass(frozen=True)
class ModelResult:
    steps: int
    loss: float | None
    eval_loss: float | None
    metric: float | None
    diverged: bool
    stopped: str = ""
    """Why it ended before the others: `diverged` or `halving`; empty if it did not."""


def count_steps(task: Task, values: Values, length: SweepLength) -> int:
    """All steps of a training. Where only epochs are known, one epoch is counted."""
    if length.steps is not None:
        return length.steps
    batches = sum(1 for _ in task.batches(values))
    return length.epochs * -(-batches // task.grad_accum)


@dataclass(frozen=True)
class GroupResults:
    """What is known of a group whose training has ended."""

    outcomes: dict[int, ModelResult]
    """By the number of the trial."""
    notes: list[str]
    peak_memory_bytes: int | None


@dataclass(frozen=True)
class HandedOver:
    """Trials that go on in another group, which is at the same step."""

    numbers: list[int]
    held: list[TrialState]
    """With empty models, as those of the user may refer to what cannot be sent to another process."""
    tensors: list[dict[str, Tensor]]
    """Of each model, its parameters and buffers."""
    losses: list[Tensor]
    sum: Tensor


class GroupTraining:
    """The training of one group of trials on its way over its batches: it can be held, narrowed and joined."""

    def __init__(
        self, task: Task, training: Training, numbers: Sequence[int], values: Values, length: SweepLength,
        evaluate: bool,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        """`numbers`: the trials. `values`: those of the batches. `folder`: where trained models are saved."""
        self._task, self._values, self._length, self._evaluate = task, values, length, evaluate
        self._training: Training | None = training
        self._held: list[TrialState] = []
        self._mode = TrainingMode()
        self.numbers = list(numbers)
        self.steps = 0
        self.outcomes: dict[int, ModelResult] = {}
        self._folder = folder
        self._notes: list[str] = []
        self._over = over_epochs(task, values, length)
        self._losses: list[Tensor] = []
        self._epoch_begin = self._forgotten = 0
        self._sum: Tensor | None = None
        self._scored: list[ModelResult] | None = None
        """What was found for `scores`, until trials end or the next step."""

    @property
    def training(self) -> Training:
        """The training, which goes on from the host if it was put there."""
        if self._training is None:
            self._training = FusedTraining.resumed(self._task, self._held, self._mode)
            self._held = []
        return self._training

    def pause(self) -> None:
        """Makes room for another group: puts the models of several that train as one on the host."""
        if isinstance(self._training, FusedTraining):
            self._mode, self._held = self._training.mode, self._training.held(range(len(self.numbers)))
            self._training = None
            if self._task.device.type == "cuda":
                torch.cuda.empty_cache()

    def advance(self, until: int | None, step_done: Callable[[int], None] = lambda done: None) -> list[int]:
        """Trains until this number of steps, or to the end. Returns the numbers of the trials that have not ended."""
        self._scored = None
        while self.numbers and (until is None or self.steps < until):
            following = next(self._over, None)
            if following is None:
                break
            batches, is_first = following
            if is_first:
                self._forget()
            losses = self.training.step(*batches)
            self._losses.append(losses)
            self._sum = losses if self._sum is None else self._sum + losses
            self.steps += 1
            step_done(self.steps)
            if self.steps % _LOOK == 0:
                self._leave_diverged()
        if not self.steps:
            raise UserError(f"{self._task.data_name} gave no batches")
        return self.numbers

    def first(self, steps: int, in_evaluation: bool = False) -> list[FirstSteps]:
        """Trains so many steps; returns what each trial computed. `in_evaluation`: as in evaluation mode."""
        losses, gradients = [], []
        if in_evaluation:
            self.training.eval()
        for step in range(1, steps + 1):
            self.advance(step)
            if self.steps == step:
                losses.append(self._losses[-1].tolist())
            if step in (1, steps):
                gradients.append([gradients_of(model) for model in self.training.models()])
        both = zip(zip(*losses, strict=True), zip(*gradients, strict=True), strict=True)
        return [FirstSteps(list(of_one), list(its)) for of_one, its in both]

    def _forget(self) -> None:
        """Drops losses that no mean will need."""
        self._epoch_begin = self.steps
        needed = int(0.9 * self.steps) - _LEAST_RECENT
        if needed > self._forgotten:
            del self._losses[: needed - self._forgotten]
            self._forgotten = needed

    def _leave_diverged(self) -> None:
        if bool(self._losses[-1].isfinite().all()):
            return
        steps = self._length.steps
        if len(self.numbers) > 1 and steps is not None and steps - self.steps < _WORTH_STEPS:
            return
        off = (~self._losses[-1].isfinite()).tolist()
        broken = [index for index, is_broken in enumerate(self.training.broken()) if is_broken and off[index]]
        if broken:
            self.leave(broken, DIVERGED)

    def leave(self, indices: Positions, why: str) -> None:
        """Ends some of the trials here; the others go on with fewer models."""
        scored, self._scored = self._scored if why == HALVING else None, None
        found = self._outcomes(why, self._evaluate and why != DIVERGED) if scored is None else scored
        self.pause()
        self._keep(indices, found, [each.model for each in self._held])
        rest = [index for index in range(len(self.numbers)) if index not in set(indices)]
        self._narrow(rest)

    def _narrow(self, rest: Positions) -> None:
        self.numbers = [self.numbers[index] for index in rest]
        self._losses = [each[rest] for each in self._losses]
        self._sum = None if self._sum is None else self._sum[rest]
        self._held = [self._held[index] for index in rest if self._held]
        if not rest:
            self._training = None  # which frees its memory

    def results(self) -> GroupResults:
        """Ends the training of all that are left."""
        if self.numbers:
            self._keep(range(len(self.numbers)), self._outcomes("", self._evaluate), [])
        return GroupResults(self.outcomes, self._notes, peak_bytes(self._task.device))

    def _keep(self, indices: Positions, found: Sequence[ModelResult], models: Sequence[nn.Module]) -> None:
        """`models`: those of the training, if they are at hand."""
        if self._folder is not None:
            models = models or self.training.models()
            self._notes += save(self._folder, {self.numbers[index]: models[index] for index in indices})
        for index in indices:
            self.outcomes[self.numbers[index]] = found[index]

    def scores(self) -> list[float]:
        """What trials are ranked by, less being better: the loss of the evaluation if there is one, or the recent."""
        found = self._scored = self._outcomes(HALVING, self._evaluate)
        each = [one.eval_loss if self._evaluate else one.loss for one in found]
        return [math.inf if one is None else one for one in each]

    def _outcomes(self, why: str, evaluate: bool) -> list[ModelResult]:
        assert self._sum is not None
        if why:
            recent = max(_LEAST_RECENT, self.steps // 10)
        elif self._length.steps is not None:
            recent = max(1, self.steps // 10)
        else:
            recent = self.steps - self._epoch_begin
        means = torch.stack(self._losses[-recent:]).double().mean(0).tolist()
        diverged = [not math.isfinite(each) for each in self._sum.double().tolist()]
        found: list[tuple[float | None, float | None]] = [(None, None)] * len(means)
        if evaluate and why:  # the training goes on as if nothing had been
            aside = apart(way_of_processes(can_spawn=False), self._task.device, lambda: self)
            with closing(aside):
                found = aside.call("evaluated")
        elif evaluate:
            found = self.evaluated()
        return [
            ModelResult(self.steps, _finite(mean), _finite(loss), _finite(metric), is_off, why)
            for mean, (loss, metric), is_off in zip(means, found, diverged, strict=True)
        ]

    def evaluated(self) -> list[tuple[float | None, float | None]]:
        """The loss and the metric of each model, over all batches of the evaluation. Raises UserError."""
        task, losses, metrics, samples = self._task, None, None, 0
        for batch, size in task.evaluation_batches(self._values):
            loss, metric = (each.double() * size for each in self.training.evaluate(batch))
            losses, metrics = (loss, metric) if losses is None or metrics is None else (losses + loss, metrics + metric)
            samples += size
        if losses is None or metrics is None:
            raise UserError(f"{task.evaluation_name or task.data_name} gave no batches to evaluate")
        shown = metrics.div(samples).tolist() if task.metric is not None else [None] * len(losses)
        return list(zip(losses.div(samples).tolist(), shown, strict=True))

    def hand_over(self) -> HandedOver:
        """Gives its trials away."""
        self.pause()
        assert self._sum is not None
        tensors = [{name: each.detach() for name, each in tensors_of(held.model).items()} for held in self._held]
        empty = [replace(held, model=nn.Identity()) for held in self._held]
        found = HandedOver(self.numbers, empty, tensors, self._losses, self._sum)
        self._narrow([])
        return found

    def take(self, other: HandedOver) -> None:
        """Takes the trials of another group, which is at the same step, into this one."""
        self.pause()
        for held, tensors in zip(other.held, other.tensors, strict=True):
            model = copy.deepcopy(self._held[0].model)
            with torch.no_grad():
                for name, each in tensors_of(model).items():
                    each.copy_(tensors[name])
            self._held.append(replace(held, model=model))
        self.numbers += other.numbers
        self._losses = [torch.cat(pair) for pair in zip(self._losses, other.losses, strict=True)]
        assert self._sum is not None
        self._sum = torch.cat((self._sum, other.sum))


def over_epochs(task: Task, values: Values, length: SweepLength) -> Iterator[tuple[list[object], bool]]:
    """The batches of each step, and whether it is the first of an epoch. The last of an epoch may have fewer."""
    done = 0
    for _ in range(length.epochs) if length.steps is None else iter(int, 1):
        before = done
        batches = (batch for batch, _ in task.batches(values))
        while of_step := list(itertools.islice(batches, task.grad_accum)):
            if length.steps is not None and done >= length.steps:
                return
            yield of_step, done == before
            done += 1
        if done == before:
            if done:
                raise UserError(f"{task.data_name} gave no batches the second time: it has to make them anew each time")
            return


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
