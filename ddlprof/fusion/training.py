"""Trainings of one model, and of many as one, with the same interface: steps over batches, then an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from ddlprof.base.errors import UserError
from ddlprof.fusion.fused import Fused
from ddlprof.fusion.hyperparameters import Values
from ddlprof.fusion.mapping import HALVES, mappable
from ddlprof.fusion.optimizers import torch_optimizer
from ddlprof.fusion.random_state import draws_undone
from ddlprof.fusion.scaling import Scaler
from ddlprof.fusion.task import Task, one_number
from ddlprof.launch.users_code import users_own


class Training(Protocol):
    """One or more models that are trained step by step."""

    def step(self, batch: Any) -> Tensor:
        """Does forward, backward and update; returns the loss of each model."""

    def evaluate(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss and metric of each model, without training."""

    def models(self) -> list[nn.Module]:
        """The models in their present state."""


class Together:
    """Trains several trials as one."""

    def __init__(self, task: Task, trials: Sequence[Values], traced: bool = True, cuda_graph: bool = False) -> None:
        self._task = task
        first = task.model(trials[0])
        with draws_undone(task.device):  # batches are shuffled as for the first trial alone
            models = [first, *(task.model(values) for values in trials[1:])]
        swept = [task.optimizer_values(values) for values in trials]
        values = {name: [float(each[name]) for each in swept] for name in swept[0]}
        self.fused = Fused(models, task.optimizer, traced=traced, cuda_graph=cuda_graph and traced, **values)
        self._scaler = Scaler(len(models), task.device) if task.is_scaled else None

    def step(self, batch: Any) -> Tensor:
        """Does forward, backward and update; returns the loss of each model."""
        losses = self.gradients(batch, self._scaler)
        self.fused.step(self._task.clip_norm, self._scaler)
        return losses

    def gradients(self, batch: Any, scaler: Scaler | None = None) -> Tensor:
        """Does forward and backward; returns the loss of each model."""
        with self._task.autocast():
            if self._is_of_outputs(batch):
                return self.fused.gradients(_output_of, batch[:-1], batch[-1], losses=self._of_all, scaler=scaler)
            return self.fused.gradients(self._task.loss_of, batch, scaler=scaler)

    def _is_of_outputs(self, batch: Any) -> bool:
        """Whether the loss is computed from outputs and targets, so that it can be computed for all models at once."""
        return self._task.loss is not None and isinstance(batch, tuple)

    def _of_all(self, outputs: Any, inputs: Any, target: Any) -> Tensor:
        assert self._task.loss is not None
        return one_number(of_all(self._task.loss, outputs, target), 1)

    def evaluate(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss and metric of each model, without training."""
        self.fused.eval()
        with torch.no_grad(), self._task.autocast():
            if self._is_of_outputs(batch):
                outputs = self.fused.forward(_output_of, batch[:-1], batch[-1])
                losses = self._of_all(outputs, batch[:-1], batch[-1])
                found = losses, self._metrics(outputs, batch[-1], losses)
            else:
                found = self.fused.forward(self._task.loss_and_metric_of, batch)
        self.fused.train()
        return found

    def _metrics(self, outputs: Any, target: Any, losses: Tensor) -> Tensor:
        if self._task.metric is None:
            return losses
        metric = vmap(self._task.metric, in_dims=(0, None), randomness="different")
        return torch.as_tensor(metric(getattr(outputs, "logits", outputs), target))

    def models(self) -> list[nn.Module]:
        """The models in their present state."""
        return self.fused.models()


def _output_of(model: Callable[..., Any], inputs: Sequence[Any], target: Any) -> Any:
    return model(*inputs)


class Alone:
    """Trains one trial as an ordinary loop would."""

    def __init__(self, task: Task, trial: Values) -> None:
        self._task, self._model = task, task.model(trial)
        trained = [each for each in self._model.parameters() if each.requires_grad]
        if not trained:
            raise UserError("the model has nothing to train")
        values = {name: float(value) for name, value in task.optimizer_values(trial).items()}
        self._optimizer = torch_optimizer(task.optimizer, trained, values)
        self._scaler = torch.amp.GradScaler(task.device.type, enabled=task.is_scaled)

    def step(self, batch: Any) -> Tensor:
        """Does forward, backward and update; returns the loss."""
        self._optimizer.zero_grad()
        loss = users_own(f"a step of {self._task.factory_name}", lambda: self._forward_and_backward(batch))
        if self._task.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._task.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss.detach().reshape(1)

    def _forward_and_backward(self, batch: Any) -> Tensor:
        loss: Tensor = self._task.loss_of(self._model, batch)
        self._scaler.scale(loss).backward()
        return loss

    def evaluate(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss and metric, without training."""
        self._model.eval()
        with torch.no_grad():
            loss, metric = users_own(
                f"the evaluation of {self._task.factory_name}",
                lambda: self._task.loss_and_metric_of(self._model, batch),
            )
        self._model.train()
        return loss.reshape(1), torch.as_tensor(metric).reshape(1)

    def models(self) -> list[nn.Module]:
        """The model in its present state."""
        return [self._model]


@dataclass(frozen=True)
class Length:
    """The length of a training in steps, or in epochs if steps are not given."""

    steps: int | None
    epochs: int


@dataclass(frozen=True)
class Outcome:
    """The result of one model."""

    steps: int
    loss: float | None
    eval_loss: float | None
    metric: float | None
    diverged: bool


def train(
    training: Training, task: Task, values: Values, length: Length, step_done: Callable[[int], None], evaluate: bool
) -> list[Outcome]:
    """Trains to the end and evaluates; returns the result of each model."""
    recent: list[Tensor] = []
    steps, epoch_begin, ended = 0, 0, None
    for batch, is_first in _over_epochs(task, values, length):
        if is_first:
            epoch_begin, recent = steps, [] if length.steps is None else recent
        losses = training.step(batch)
        recent.append(losses)
        ended = losses if ended is None else ended + losses
        steps += 1
        step_done(steps)
    if ended is None:
        raise UserError(f"{task.data_name} gave no batches")
    last = recent[-max(1, steps // 10) :] if length.steps is not None else recent[: steps - epoch_begin]
    means = torch.stack(last).double().mean(0).tolist()
    diverged = [not math.isfinite(each) for each in ended.double().tolist()]
    found = _evaluated(training, task, values) if evaluate else [(None, None)] * len(means)
    return [
        Outcome(steps, _finite(mean), _finite(loss), _finite(metric), is_off)
        for mean, (loss, metric), is_off in zip(means, found, diverged, strict=True)
    ]


def _over_epochs(task: Task, values: Values, length: Length) -> Iterator[tuple[Any, bool]]:
    done = 0
    for _ in range(length.epochs) if length.steps is None else iter(int, 1):
        before = done
        for batch, _ in task.batches(values):
            if length.steps is not None and done >= length.steps:
                return
            yield batch, done == before
            done += 1
        if done == before:
            if done:
                raise UserError(f"{task.data_name} gave no batches the second time: it has to make them anew each time")
            return


def _evaluated(training: Training, task: Task, values: Values) -> list[tuple[float | None, float | None]]:
    losses = metrics = None
    samples = 0
    for batch, size in task.evaluation_batches(values):
        loss, metric = (each.double() * size for each in training.evaluate(batch))
        losses, metrics = (loss, metric) if losses is None or metrics is None else (losses + loss, metrics + metric)
        samples += size
    if losses is None or metrics is None:
        raise UserError(f"{task.evaluation_name or task.data_name} gave no batches to evaluate")
    shown = metrics.div(samples).tolist() if task.metric is not None else [None] * len(losses)
    return list(zip(losses.div(samples).tolist(), shown, strict=True))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_IGNORED = -100
"""The target that cross_entropy ignores."""


def _cross_entropy(outputs: Tensor, target: Tensor) -> Tensor | None:
    """The cross-entropy of outputs (B, N, C, ...) against shared classes (N, ...); None for other shapes."""
    if target.is_floating_point() or outputs.dim() < 3 or outputs.shape[1] != len(target):
        return None
    models = len(outputs)
    targets = target.expand(models, *target.shape).flatten(0, 1)
    each = functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="none", ignore_index=_IGNORED)
    return each.view(models, -1).sum(1) / (target != _IGNORED).sum()


def _mse_loss(outputs: Tensor, target: Tensor) -> Tensor | None:
    if outputs.shape[1:] != target.shape or outputs.dtype != target.dtype:
        return None
    return (outputs - target).square().flatten(1).mean(1)


_OF_ALL: dict[Callable[..., Any], Callable[[Tensor, Tensor], Tensor | None]] = {
    functional.cross_entropy: _cross_entropy,
    functional.mse_loss: _mse_loss,
}


def of_all(loss: Callable[..., Any], outputs: Any, target: Any) -> Any:
    """The loss of each model from the outputs of all models."""
    known = _OF_ALL.get(loss)
    if known is not None and isinstance(outputs, Tensor) and isinstance(target, Tensor):
        if torch.is_autocast_enabled(outputs.device.type):  # which computes these losses in single precision
            outputs, target = (each.float() if each.dtype in HALVES else each for each in (outputs, target))
        found = known(outputs, target)
        if found is not None:
            return found
    with mappable(target.device if isinstance(target, Tensor) else torch.device("cpu")):
        return vmap(loss, in_dims=(0, None), randomness="different")(outputs, target)
