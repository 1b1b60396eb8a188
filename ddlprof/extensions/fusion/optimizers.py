"""Optimizers that update B models at once, each with its own hyper-parameters. The formulas are those of torch.optim.

The parameters of all models are the rows of one matrix, so an update takes as many operators as that of one tensor. A
value that all models share is a number; one that differs is a column of B values.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.groups import Grouping, groups_of
from ddlprof.extensions.fusion.hyperparameters import DEFAULTS, YES_OR_NO

Value: TypeAlias = "float | Tensor"


_LEAST_EPS = 1e-15
"""The smallest eps. With a smaller one the divisor could be the root of a denormal number."""


_MOST_COLUMNS = 32
"""The most columns of values that are kept on the device for the next update."""


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer knows of one model."""

    updates: list[int]
    """The updates that each parameter had."""
    rows: list[Tensor]
    """The model's row of each state."""


class BatchedOptimizer(ABC):
    """Updates the rows of `matrix`, of shape (B, P), with gradients of the same shape."""

    def __init__(
        self,
        matrix: Tensor,
        spans: Sequence[slice],
        values: Mapping[str, Sequence[float]],
        fixed: Collection[str] = (),
    ) -> None:
        """`spans`: the columns of each parameter.

        `values`: the hyper-parameters, each with one value for each model. `fixed`: those that `set` leaves alone.
        """
        self._fixed = fixed
        self.matrix, self.spans = matrix, spans
        self.values: dict[str, list[float]] = {name: list(each) for name, each in values.items()}
        self._updates = [[0] * len(matrix)] * len(spans)
        """The updates of each model that each parameter had; one list for parameters with the same."""
        self._columns: dict[tuple[float, ...], Tensor] = {}
        self._flushes = matrix.device.type == "cpu" and not _are_flushed()
        self._states = [torch.zeros_like(matrix) for _ in range(self.states(self.values))]

    @staticmethod
    @abstractmethod
    def states(values: Mapping[str, Sequence[float]]) -> int:
        """The number of matrices of the size of the parameters that it keeps as state."""

    @abstractmethod
    def _update(self, rows: Tensor, gradients: Tensor, states: Sequence[Tensor], updates: Sequence[int]) -> None:
        """Updates some columns of the matrix in place. `updates`: the number of the update of each model, from 1."""

    def set(self, name: str, each: Sequence[float]) -> None:
        """Changes a hyper-parameter of all models, one value for each. Raises UserError."""
        before = self.values.get(name)
        if before is None:
            raise UserError(f"the optimizer has no {name}; it has {', '.join(self.values)}")
        if len(each) != len(before):
            raise UserError(f"{name}: {len(each)} values for {len(before)} models")
        if name in self._fixed:
            return
        if name in YES_OR_NO and list(each) != before:
            raise UserError(f"{name} cannot change while models train")
        if name == "momentum" and any(new and not old for new, old in zip(each, before, strict=True)):
            raise UserError("momentum cannot begin while models train: begin with more than 0")
        self.values[name] = list(each)

    def state_of(self, model: int) -> OptimizerState:
        """What it knows of one of the models, as copies."""
        return OptimizerState([each[model] for each in self._updates], [each[model].clone() for each in self._states])

    def load(self, states: Sequence[OptimizerState]) -> None:
        """Goes on from the state of each model."""
        counts: dict[tuple[int, ...], list[int]] = {}
        updates = [tuple(each) for each in zip(*(state.updates for state in states), strict=True)]
        self._updates = [counts.setdefault(each, list(each)) for each in updates]
        for number, tensor in enumerate(self._states):  # models without momentum or AMSGrad may lack the last one
            rows = [state.rows[number] if number < len(state.rows) else tensor[0] * 0 for state in states]
            tensor.copy_(torch.stack([row.to(tensor.device) for row in rows]))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], skipped: Sequence[int] = ()) -> None:
        """Updates the parameters that have a gradient, of shape (B, ...).

        Others stay as they are, as in torch.optim; so do those of the models in `skipped`, and their states.
        """
        there = [number for number, each in enumerate(gradients) if each is not None]
        if not there:
            return
        models = len(self.matrix)
        before = [each[list(skipped)] for each in (self.matrix, *self._states)] if skipped else []
        distinct = {id(self._updates[number]): self._updates[number] for number in there}
        once_more = {key: [done + 1 for done in each] for key, each in distinct.items()}
        updates = [once_more[id(self._updates[number])] for number in there]
        rows = [each.reshape(models, -1) for each in gradients if each is not None]
        with self._without_denormals():
            if len(there) == len(self.spans) and all(each is updates[0] or each == updates[0] for each in updates):
                whole = torch.cat(rows, dim=1) if len(rows) > 1 else rows[0].clone()
                self._update(self.matrix, whole, self._states, updates[0])
            else:
                for number, row, each in zip(there, rows, updates, strict=True):
                    span = self.spans[number]
                    self._update(self.matrix[:, span], row.clone(), [one[:, span] for one in self._states], each)
        for tensor, kept in zip((self.matrix, *self._states), before, strict=False):
            tensor[list(skipped)] = kept
        for each in once_more.values():
            for model in skipped:
                each[model] -= 1
        for number, each in zip(there, updates, strict=True):
            self._updates[number] = each

    @contextmanager
    def _without_denormals(self) -> Iterator[None]:
        """A context in which denormal numbers (below 1e-38 in single precision) are treated as zero.

        The mean of gradients that become zero shrinks to such a number and stays there; a CPU takes thirty times as
        long for it.
        """
        if not self._flushes or min(self.values.get("eps", [1.0])) < _LEAST_EPS:
            yield
            return
        torch.set_flush_denormal(True)
        try:
            yield
        finally:
            torch.set_flush_denormal(False)

    def _value(self, function: Callable[..., float], *names: str, updates: Sequence[int] | None = None) -> Value:
        """A function of some hyper-parameters: a number if it is equal for all models, else a column.

        `updates`: a further argument of the function.
        """
        given = [self.values[name] for name in names] + ([] if updates is None else [updates])
        found = tuple([function(*each) for each in zip(*given, strict=True)])
        if len(set(found)) == 1:
            return found[0]
        column = self._columns.get(found)
        if column is None:  # a copy to a GPU, for which the host waits
            if len(self._columns) >= _MOST_COLUMNS:
                self._columns.clear()
            made = torch.tensor(found, dtype=self.matrix.dtype, device=self.matrix.device)
            column = self._columns[found] = made.unsqueeze(1)
        return column

    def _move(self, rows: Tensor, direction: Tensor) -> None:
        """Moves the parameters by the learning rate against a direction."""
        rate = self._value(float, "lr")
        if isinstance(rate, float):
            rows.sub_(direction, alpha=rate)
        else:
            rows.addcmul_(direction, rate, value=-1)

    def _is_used(self, name: str) -> bool:
        return any(self.values[name])


def _same(values: Sequence[float]) -> bool:
    return min(values) == max(values)


def _are_flushed() -> bool:
    """Whether denormal numbers are treated as zero already. This is tried, as torch has no function for it."""
    return not (torch.finfo(torch.float32).tiny / 2 * torch.ones(1, dtype=torch.float32)).item()


class Sgd(BatchedOptimizer):
    """torch.optim.SGD, with momentum, dampening, Nesterov's momentum and weight decay."""

    @staticmethod
    def states(values: Mapping[str, Sequence[float]]) -> int:
        """One if any model has momentum."""
        return 1 if any(values["momentum"]) else 0

    def _update(self, rows: Tensor, gradients: Tensor, states: Sequence[Tensor], updates: Sequence[int]) -> None:
        if self._is_used("weight_decay"):
            gradients += rows * self._value(float, "weight_decay")
        if states:
            (velocity,) = states
            momentum = self._value(float, "momentum")
            if max(updates) == 1:
                velocity.copy_(gradients)
            elif not self._is_used("dampening"):
                velocity.mul_(momentum).add_(gradients)
            else:  # without momentum there is no dampening, nor at the first update
                kept = self._value(
                    lambda m, d, update: 1 - d if m and update > 1 else 1.0, "momentum", "dampening", updates=updates
                )
                velocity.mul_(momentum).add_(gradients * kept)
            if not self._is_used("nesterov"):
                gradients = velocity
            elif all(self.values["nesterov"]):
                gradients = gradients + velocity * momentum
            else:
                which = self._value(float, "nesterov")
                gradients = torch.where(which.bool(), gradients + velocity * momentum, velocity)  # type: ignore[union-attr]
        self._move(rows, gradients)


class Adam(BatchedOptimizer):
    """torch.optim.Adam, with AMSGrad for the models that want it."""

    decoupled = False

    @staticmethod
    def states(values: Mapping[str, Sequence[float]]) -> int:
        """The means of gradients and of their squares, space for the direction of an update, and AMSGrad's largest."""
        return 4 if any(values["amsgrad"]) else 3

    def _update(self, rows: Tensor, gradients: Tensor, states: Sequence[Tensor], updates: Sequence[int]) -> None:
        if self._is_used("weight_decay"):
            if self.decoupled:
                rows.mul_(self._value(lambda lr, decay: 1 - lr * decay, "lr", "weight_decay"))
            else:
                gradients += rows * self._value(float, "weight_decay")
        mean, square, direction, *largest = states
        one, two, eps = (self._value(float, name) for name in ("beta1", "beta2", "eps"))
        whole = direction.is_contiguous()  # not for some columns only
        alike = whole and _same(updates) and _same(self.values["amsgrad"])
        if isinstance(one, float) and isinstance(two, float) and isinstance(eps, float) and alike:
            # torch's own update goes through memory once, ours ten times; so it is applied to zeros at rate -1.
            done = torch.full((), float(updates[0]), device=rows.device)
            torch._fused_adam_(
                [direction.zero_()], [gradients], [mean], [square], largest, [done],
                lr=-1.0, beta1=one, beta2=two, weight_decay=0.0, eps=eps, amsgrad=bool(largest), maximize=False,
            )  # fmt: skip
        else:
            mean.lerp_(gradients, self._value(lambda beta: 1 - beta, "beta1"))
            square.mul_(two).add_(gradients.square() * self._value(lambda beta: 1 - beta, "beta2"))
            root = self._value(lambda beta, update: math.sqrt(1 - beta**update), "beta2", updates=updates)
            # On a CPU the root of zero takes twenty times as long; weights that never had a gradient need it.
            size = self._squares(square, largest).clamp_min(torch.finfo(square.dtype).tiny).sqrt_().div_(root).add_(eps)
            scale = self._value(lambda beta, update: 1 / (1 - beta**update), "beta1", updates=updates)
            torch.div(mean, size, out=direction).mul_(scale)
        self._move(rows, direction)

    def _squares(self, square: Tensor, largest: Sequence[Tensor]) -> Tensor:
        """The mean squares that divide an update: for AMSGrad the largest so far."""
        if not largest:
            return square
        torch.maximum(largest[0], square, out=largest[0])
        which = self._value(float, "amsgrad")
        return largest[0] if isinstance(which, float) else torch.where(which.bool(), largest[0], square)


class AdamW(Adam):
    """torch.optim.AdamW: weight decay that is separate from the gradient."""

    decoupled = True


OPTIMIZERS: dict[str, type[BatchedOptimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}


def torch_optimizer(
    name: str, model: nn.Module, values: Mapping[str, float], grouping: Grouping | None = None
) -> torch.optim.Optimizer:
    """torch's own optimizer with these values, for one model that trains alone. Other values have their defaults.

    Each of its groups has what is fixed there as `fixed`.
    """
    chosen = {**DEFAULTS[name], **values}
    lr, decay = chosen["lr"], chosen["weight_decay"]
    named = dict(model.named_parameters())
    groups = groups_of(model, name, grouping)
    parameters = [{"params": [named[each] for each in group.names], "fixed": tuple(group.fixed)} for group in groups]
    if name == "sgd":
        made = _without_compiler(torch.optim.SGD)(
            parameters, lr, chosen["momentum"], chosen["dampening"], decay, nesterov=bool(chosen["nesterov"])
        )
    else:
        kind = _without_compiler(torch.optim.AdamW if name == "adamw" else torch.optim.Adam)
        betas = chosen["beta1"], chosen["beta2"]
        made = kind(parameters, lr, betas, chosen["eps"], decay, bool(chosen["amsgrad"]))
    for given, group in zip(made.param_groups, groups, strict=True):
        _set(given, group.fixed)
    return made


def set_values(optimizer: torch.optim.Optimizer, values: Mapping[str, float]) -> None:
    """Changes hyper-parameters of torch's own optimizer, by the names that they have here, where they are not fixed."""
    for group in optimizer.param_groups:
        _set(group, {name: value for name, value in values.items() if name not in group["fixed"]})


def _set(group: dict[str, Any], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if name in ("beta1", "beta2"):
            one, two = group["betas"]
            group["betas"] = (value, two) if name == "beta1" else (one, value)
        else:
            group[name] = bool(value) if name in YES_OR_NO else value


def _without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The optimizer's class without the wrappers that import torch's compiler, which takes more than a second."""
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "step")}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(plain["step"])})
