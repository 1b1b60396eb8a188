"""Trains B models of one shape as one: stacked parameters, forward mapped over them, one backward, one update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ddlprof.extensions.fusion.groups import Grouping, ParameterGroup, groups_of
from ddlprof.extensions.fusion.hyperparameters import per_model
from ddlprof.extensions.fusion.mapping import mappable
from ddlprof.extensions.fusion.optimizers import OPTIMIZERS, BatchedOptimizer, OptimizerState
from ddlprof.extensions.fusion.recurrent import decompose
from ddlprof.extensions.fusion.scaling import Scaler
from ddlprof.extensions.fusion.stackable import alike_in, check_alike, check_forward, check_model, tensors_of
from ddlprof.extensions.fusion.traced import OfAll, Traced, Untraceable

_LATE = "forward changes a buffer only at later steps, so it was taken to be the same in all models: change it at once:"
Function = Callable[..., Any]
"""Computes something of one model, which is its first argument: `lambda model, x, y: cross_entropy(model(x), y)`."""


class NotShared(Untraceable):
    """A tensor that the first forward did not change, and that is the same in all models, is changed later."""


class Fused:
    """Models of one shape that train as one, each with hyper-parameters of its own.

    The models given are copied and stay as they are. All of them see the same batches::

        fused = Fused([make() for _ in rates], "adamw", lr=rates)
        for x, y in batches:
            losses = fused.forward(lambda model, x, y: cross_entropy(model(x), y), x, y)  # one for each model
            fused.backward(losses)
            fused.step()
        trained = fused.models()
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizer: str = "sgd",
        *,
        traced: bool = False,
        groups: Grouping | None = None,
        **values: float | Sequence[float],
    ) -> None:
        """`values` are hyper-parameters of the optimizer: a number for all models, or one number for each.

        `traced` records the operators of forward once and calls these from then on, which is faster and needs a model
        whose forward is the same at each step; the same `function` has to be given each time. `groups` gives
        parameters of a model values of their own, as `torch.optim` takes them:
        `lambda model: [{"params": [...], "weight_decay": 0.0}, {"params": [...]}]`.

        Raises UserError where the models are not of one shape or have hooks on gradients, or the optimizer does not
        take a value.
        """
        check_alike(models)
        for model in models:
            check_model(model)
        self.size = len(models)
        chosen = per_model(optimizer, self.size, values)
        self._template = copy.deepcopy(models[0])
        self._called = copy.deepcopy(models[0])
        decompose(self._called)
        self._traced = Traced(self._called) if traced else None
        self._trained: dict[str, Tensor] = {}
        self._rest: dict[str, Tensor] = {}
        self._shared: dict[str, Tensor] = {}
        """Buffers and frozen parameters that are the same in all models and stay so; not stacked."""
        self._alike = alike_in(models)
        self.device = next(models[0].parameters()).device
        self._optimizers: list[tuple[list[str], BatchedOptimizer]] = []
        self._is_checked = False
        self._adds = False
        """Whether gradients of further batches are added to those that are there."""
        with torch.no_grad():
            for group in groups_of(models[0], optimizer, groups):
                own = {name: [value] * self.size for name, value in group.fixed.items()}
                self._stack(models, group, partial(OPTIMIZERS[optimizer], values={**chosen, **own}))
            tensors = [tensors_of(model) for model in models]
            for name, one in tensors[0].items():
                if not one.requires_grad:
                    self._rest[name] = torch.stack([each[name].detach() for each in tensors])

    def _stack(
        self, models: Sequence[nn.Module], group: ParameterGroup, optimizer: Callable[..., BatchedOptimizer]
    ) -> None:
        tensors = [tensors_of(model) for model in models]
        kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
        for name in group.names:
            kinds.setdefault((tensors[0][name].dtype, tensors[0][name].device), []).append(name)
        for names in kinds.values():
            rows = [torch.cat([each[name].detach().reshape(-1) for name in names]) for each in tensors]
            matrix, spans, begin = torch.stack(rows), [], 0
            for name in names:
                shape = tensors[0][name].shape
                spans.append(slice(begin, begin + shape.numel()))
                begin += shape.numel()
                view = matrix[:, spans[-1]].unflatten(1, shape) if shape else matrix[:, begin - 1]
                self._trained[name] = view.requires_grad_()
            self._optimizers.append((names, optimizer(matrix, spans, fixed=group.fixed)))

    @property
    def recordings(self) -> int:
        """The number of forwards that are recorded. Others are mapped anew at each step."""
        return self._traced.recordings if self._traced is not None else 0

    def train(self, mode: bool = True) -> None:
        """Like `Module.train`, for all models."""
        self._called.train(mode)

    def eval(self) -> None:
        """Like `Module.eval`, for all models."""
        self.train(False)

    def forward(self, function: Function, *batch: Any) -> Any:
        """The result of `function(model, *batch)` for all models, with a first dimension of B.

        `function` may call the model but use nothing else of it. All models get the same batch; their dropout differs.
        Raises the errors of `torch.func.vmap` if an operator cannot be mapped, and UserError if forward registers hooks
        on gradients.
        """
        self._check(function, batch)
        return self._computed(function, self._mapped(function), batch)

    def gradients(
        self,
        function: Function,
        *batch: Any,
        losses: Callable[..., Tensor] | None = None,
        scaler: Scaler | None = None,
        batches: int = 1,
    ) -> Tensor:
        """The loss of each model, of shape (B,); sets the gradients in the parameters' `grad`.

        Equal to `forward` and `backward`, but recorded as a whole if `traced`. `losses(found, *batch)`: computes the
        losses from the results of `function` for all models, if that takes fewer operators than for each. `scaler`:
        gradients are those of scaled losses; `step` gets it, too. `batches`: this is one of so many batches of a step,
        whose mean gradient it is to use. The gradients are added to those since the last step.
        """

        def with_gradients(trained: dict[str, Tensor], rest: dict[str, Tensor], given: tuple[Any, ...]) -> Any:
            scales, *batch = given
            with torch.enable_grad():
                found, changed = self._mapped(function)(trained, rest, tuple(batch))
                each = found if losses is None else losses(found, *batch)
                with torch.autocast(self.device.type, enabled=False):  # as backward() is called outside
                    whole = (each if scales is None else each * scales).sum()
                    gradients = torch.autograd.grad(whole, list(trained.values()), allow_unused=True)
            return (each.detach(), gradients), changed

        self._check(function, batch)
        scales = None if scaler is None else scaler.scales
        if batches > 1:
            scales = (torch.ones(self.size, device=self.device) if scales is None else scales) / batches
        given = (scales, *batch)
        each, gradients = self._computed((function, losses), with_gradients, given, differentiable=False)
        for parameter, gradient in zip(self._trained.values(), gradients, strict=True):
            parameter.grad = _added(parameter.grad if self._adds else None, gradient) if batches > 1 else gradient
        self._adds = batches > 1
        return each.clone()  # type: ignore[no-any-return] # a CUDA graph writes to the same place the next time

    def _check(self, function: Function, batch: tuple[Any, ...]) -> None:
        """Calls the first function with one model alone, to find out what would be lost by mapping."""
        if not self._is_checked:
            changed = check_forward(function, copy.deepcopy(self._template).train(), batch)
            self._is_checked_with(self._alike - changed)

    def _is_checked_with(self, shared: Collection[str]) -> None:
        """Makes it believe that forward has no hooks, and that it does not change these tensors, which all share."""
        self._is_checked = True
        for name in shared:
            self._shared[name] = self._rest.pop(name)[0].clone()

    def _computed(self, key: Hashable, of_all: OfAll, batch: tuple[Any, ...], differentiable: bool = True) -> Any:
        if self._traced is not None:
            found, changed = self._traced(key, of_all, self._trained, self._rest, batch, differentiable)
        else:
            found, changed = of_all(self._trained, self._rest, batch)
        for name, each in changed.items():
            self._rest[name] = each.detach()
        return found

    def _mapped(self, function: Function) -> Function:
        """`function` over all models, as a function of trained parameters, other tensors and a batch.

        Also returns new buffers.
        """

        def of_one(trained: dict[str, Tensor], rest: dict[str, Tensor], batch: tuple[Any, ...]) -> tuple[Any, Any]:
            tensors = {**trained, **rest, **self._shared}

            def model(*args: Any, **kwargs: Any) -> Any:
                return functional_call(self._called, tensors, args, kwargs)

            model.forward = self._called.forward  # type: ignore[attr-defined] # for its signature
            found = function(model, *batch)
            for name, each in self._shared.items():
                if tensors[name] is not each:
                    raise NotShared(f"{_LATE} {name}")
            # Buffers that a module replaces are put into `tensors`; those that it writes into have changed already.
            return found, {name: tensors[name] for name in rest if tensors[name] is not rest[name]}

        over_all: Function = vmap(of_one, in_dims=(0, 0, None), randomness="different")

        def mapped(*given: Any) -> Any:
            before = {name: each._version for name, each in self._shared.items()}
            with mappable(self.device):
                found = over_all(*given)
            for name, version in before.items():
                if self._shared[name]._version != version:
                    raise NotShared(f"{_LATE} {name}")
            return found

        return mapped

    def backward(self, losses: Tensor) -> None:
        """Computes gradients of the sum of the losses.

        Each model gets its own, as its loss depends on no other model.
        """
        for each in self._trained.values():
            each.grad = None
        losses.sum().backward()

    def step(self, clip_norm: float | None = None, scaler: Scaler | None = None) -> None:
        """Updates all models once.

        `clip_norm`: the largest norm of all gradients of a model; larger ones are scaled down. `scaler`: by which the
        losses were scaled; models whose gradients are not finite are not updated.
        """
        self._adds = False
        skipped = [] if scaler is None else self._unscale(scaler)
        if clip_norm is not None:
            self._clip(clip_norm)
        for names, optimizer in self._optimizers:
            optimizer.step([self._trained[name].grad for name in names], skipped)

    def _unscale(self, scaler: Scaler) -> list[int]:
        """Takes the scale out of the gradients and updates it. Returns the models that overflowed."""
        found = [each for each in self._trained.values() if each.grad is not None]
        gradients, finite = scaler.unscaled([each.grad for each in found if each.grad is not None])
        for parameter, gradient in zip(found, gradients, strict=True):
            parameter.grad = gradient
        scaler.update(finite)
        return [model for model, is_finite in enumerate(finite.tolist()) if not is_finite]

    def _clip(self, most: float) -> None:
        """Clips as torch.nn.utils.clip_grad_norm_ does, separately for each model."""
        found = [each for each in self._trained.values() if each.grad is not None]
        gradients = [each.grad.reshape(self.size, -1) for each in found if each.grad is not None]
        if not gradients:
            return
        device = gradients[0].device
        norms = torch.stack([torch.linalg.vector_norm(each, dim=1).to(device) for each in gradients])
        scale = (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
        for parameter, gradient in zip(found, gradients, strict=True):
            own = scale.to(gradient.device, gradient.dtype)
            parameter.grad = (gradient * own.unsqueeze(1)).view(parameter.shape)

    def set(self, **values: float | Sequence[float]) -> None:
        """Changes hyper-parameters, as a schedule does. Each value is a number for all models, or a number for each."""
        for _, optimizer in self._optimizers:
            for name, value in values.items():
                each = [float(value)] * self.size if isinstance(value, (int, float)) else [float(v) for v in value]
                optimizer.set(name, each)

    def broken(self) -> list[bool]:
        """Of each model, whether a trained parameter is infinite or NaN."""
        found = torch.stack([~each.matrix.isfinite().all(1).cpu() for _, each in self._optimizers])
        return found.any(0).tolist()

    def optimizer_state(self, model: int) -> list[OptimizerState]:
        """What the optimizer knows of one of the models, as copies."""
        return [optimizer.state_of(model) for _, optimizer in self._optimizers]

    def load_optimizer_states(self, states: Sequence[list[OptimizerState]]) -> None:
        """Goes on with what another optimizer of this kind knew of each of these models."""
        with torch.no_grad():
            for number, (_, optimizer) in enumerate(self._optimizers):
                optimizer.load([each[number] for each in states])

    def state_dict(self, model: int) -> dict[str, Tensor]:
        """The parameters and buffers of one of the models, as copies."""
        own = {name: each[model].detach().clone() for name, each in (*self._trained.items(), *self._rest.items())}
        return own | {name: each.clone() for name, each in self._shared.items()}

    def models(self) -> list[nn.Module]:
        """The models in their present state, as separate modules with the gradients of the last backward."""
        found = []
        for number in range(self.size):
            model, state = copy.deepcopy(self._template), self.state_dict(number)
            with torch.no_grad():
                for name, tensor in tensors_of(model).items():
                    tensor.copy_(state[name])
            for name, parameter in model.named_parameters():
                gradient = self._trained[name].grad if name in self._trained else None
                parameter.grad = None if gradient is None else gradient[number].clone()
            model.train(self._called.training)
            found.append(model)
        return found


def _added(before: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """The sum, in memory of its own: a CUDA graph writes its gradients to the same place the next time."""
    if gradient is None:
        return before
    return gradient.clone() if before is None else before.add_(gradient)
