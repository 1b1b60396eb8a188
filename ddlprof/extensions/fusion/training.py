"""Trainings of one model, and of many as one, with the same interface: steps over batches, then an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.fused import Fused, NotShared
from ddlprof.extensions.fusion.hyperparameters import Values, defaults_of
from ddlprof.extensions.fusion.losses import of_all
from ddlprof.extensions.fusion.optimizers import OptimizerState, set_values, torch_optimizer
from ddlprof.extensions.fusion.random_state import draws_undone
from ddlprof.extensions.fusion.scaling import Scaler, ScalerState
from ddlprof.extensions.fusion.task import Task, one_number
from ddlprof.extensions.fusion.traced import Untraceable
from ddlprof.launch.users_code import users_own


@dataclass(frozen=True)
class TrainingMode:
    """How models train as one."""

    traced: bool = True
    """Whether steps are recorded."""
    steps: int | None = None
    """All steps of a training, if a schedule needs to know."""
    shared: frozenset[str] | None = None
    """What an earlier training of these models found that they share; None: there was none."""

    def without(self, error: Untraceable) -> TrainingMode:
        """Another way, after this one has failed."""
        return replace(self, shared=frozenset()) if isinstance(error, NotShared) else replace(self, traced=False)


@dataclass(frozen=True)
class TrialState:
    """One model in the middle of a training, on the host, to go on with in another group."""

    trial: Values
    model: nn.Module
    optimizer: list[OptimizerState]
    scale: ScalerState | None
    step: int


_USUAL = TrainingMode()


class FusedTraining:
    """Trains several trials as one."""

    def __init__(self, task: Task, trials: Sequence[Values], mode: TrainingMode = _USUAL) -> None:
        first = task.model(trials[0])
        with draws_undone(task.device):  # batches are shuffled as for the first trial alone
            models = [first, *(task.model(values) for values in trials[1:])]
        self._begin(task, trials, models, mode)

    def _begin(self, task: Task, trials: Sequence[Values], models: Sequence[nn.Module], mode: TrainingMode) -> None:
        self._task, self._trials, self.mode, self._step = task, list(trials), mode, 0
        swept = [task.optimizer_values(values) for values in trials]
        optimizer = task.optimizer_of(trials[0])
        known = {
            name: default for name, default in defaults_of(optimizer).items() if any(name in each for each in swept)
        }
        values = {name: [float(each.get(name, default)) for each in swept] for name, default in known.items()}
        self.fused = Fused(models, optimizer, traced=mode.traced, groups=task.param_groups, **values)
        if mode.shared is not None:
            self.fused._is_checked_with(mode.shared)
        self._scaler = Scaler(len(models), task.device) if task.is_scaled else None

    @property
    def shared(self) -> frozenset[str]:
        """Buffers and frozen parameters that all models share, known from the first step on."""
        return frozenset(self.fused._shared)

    @property
    def users_functions(self) -> tuple[Any, ...]:
        """What it calls of the user's besides models."""
        return self._task.users_functions

    @classmethod
    def resumed(cls, task: Task, held: Sequence[TrialState], mode: TrainingMode) -> FusedTraining:
        """Goes on with models that are all at the same step."""
        training = cls.__new__(cls)
        models = [each.model.to(task.device) for each in held]
        training._begin(task, [each.trial for each in held], models, mode)
        training._step = held[0].step
        training.fused.load_optimizer_states([each.optimizer for each in held])
        if training._scaler is not None:
            training._scaler.load([each.scale for each in held if each.scale is not None])
        return training

    def held(self, models: Sequence[int]) -> list[TrialState]:
        """Some of its models, as they are now."""
        every = self.fused.models()
        scales = [None if self._scaler is None else self._scaler.state_of(model) for model in models]
        return [
            TrialState(self._trials[model], every[model].cpu(), self._optimizer_state(model), scale, self._step)
            for model, scale in zip(models, scales, strict=True)
        ]

    def _optimizer_state(self, model: int) -> list[OptimizerState]:
        found = self.fused.optimizer_state(model)
        return [OptimizerState(each.updates, [row.cpu() for row in each.rows]) for each in found]

    def step(self, *batches: Any) -> Tensor:
        """Does forward and backward of each batch, and an update; returns the loss of each model."""
        self._schedule()
        if len(batches) == 1:
            losses = self.gradients(batches[0], self._scaler)
        else:
            losses = torch.stack([self.gradients(each, self._scaler, len(batches)) for each in batches]).mean(0)
        self.fused.step(self._task.clip_norm, self._scaler)
        self._step += 1
        return losses

    def _schedule(self) -> None:
        found = [self._task.values_at(self._step, self.mode.steps, values) for values in self._trials]
        names = {name for each in found for name in each}
        if any(len(each) != len(names) for each in found):
            raise UserError("--schedule: it has to give values of the same names for each model")
        if names:
            self.fused.set(**{name: [each[name] for each in found] for name in names})

    def gradients(self, batch: Any, scaler: Scaler | None = None, batches: int = 1) -> Tensor:
        """Does forward and backward of one batch of `batches` of a step; returns the loss of each model."""
        with self._task.autocast():
            if not self._is_of_outputs(batch):
                return self.fused.gradients(self._task.loss_of, batch, scaler=scaler, batches=batches)
            inputs, target = batch[:-1], batch[-1]
            return self.fused.gradients(_output_of, inputs, target, losses=self._of_all, scaler=scaler, batches=batches)

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

    def broken(self) -> list[bool]:
        """Of each model, whether a trained parameter is infinite or NaN."""
        return self.fused.broken()

    def eval(self) -> None:
        """Like `Module.eval`, for all models."""
        self.fused.eval()


def _output_of(model: Callable[..., Any], inputs: Sequence[Any], target: Any) -> Any:
    return model(*inputs)


class Alone:
    """Trains one trial as an ordinary loop would."""

    def __init__(self, task: Task, trial: Values, steps: int | None = None) -> None:
        """`steps`: all steps of the training, if a schedule needs to know. Raises UserError."""
        self._task, self._model = task, task.model(trial)
        self._trial, self._steps, self._step = trial, steps, 0
        if not any(each.requires_grad for each in self._model.parameters()):
            raise UserError("the model has nothing to train")
        values = {name: float(value) for name, value in task.optimizer_values(trial).items()}
        self._optimizer = torch_optimizer(task.optimizer_of(trial), self._model, values, task.param_groups)
        self._scaler = torch.amp.GradScaler(task.device.type, enabled=task.is_scaled)

    def step(self, *batches: Any) -> Tensor:
        """Does forward and backward of each batch, and an update; returns the loss."""
        set_values(self._optimizer, self._task.values_at(self._step, self._steps, self._trial))
        self._optimizer.zero_grad()
        what = f"a step of {self._task.factory_name}"
        found = [
            users_own(what, lambda batch=batch: self._forward_and_backward(batch, len(batches)))  # type: ignore[misc]
            for batch in batches
        ]
        if self._task.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._task.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._step += 1
        return (found[0] if len(found) == 1 else torch.stack(found).mean()).reshape(1)

    def _forward_and_backward(self, batch: Any, batches: int) -> Tensor:
        loss: Tensor = self._task.loss_of(self._model, batch)
        self._scaler.scale(loss if batches == 1 else loss / batches).backward()
        return loss.detach()

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

    def broken(self) -> list[bool]:
        """Whether a trained parameter is infinite or NaN, from which no training comes back."""
        return [any(not each.isfinite().all() for each in self._model.parameters() if each.requires_grad)]

    def eval(self) -> None:
        """Like `Module.eval`."""
        self._model.eval()


Training = FusedTraining | Alone
"""One or more models that are trained step by step."""
