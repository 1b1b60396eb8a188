"""What is trained: the user's factory, batches, loss and metric, and how a batch is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest
from ddlprof.extensions.fusion.groups import Grouping
from ddlprof.extensions.fusion.hyperparameters import DEFAULTS, OPTIMIZER, Value, defaults_of
from ddlprof.extensions.fusion.schedules import Schedule, named_schedule
from ddlprof.launch.users_code import find, named_parameters, split_name, users_own

SEED = "seed"
"""The name of a sweep over seeds. Each model starts as a separate training with its seed would."""
_TARGETS = ("labels", "label", "target", "targets", "y")
"""Names of the target in a batch that is a dict."""


PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
"""The type to which autocast casts, by the name of the precision; None: no autocast, and the types of the model."""


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of samples whose largest value along dimension 1 is at the target."""
    return (output.argmax(1) == target).float().mean()


@dataclass(frozen=True)
class Task:
    """A training that is repeated with different values."""

    factory: Callable[..., Any]
    factory_name: str
    data: Any
    data_name: str
    loss: Callable[..., Any] | None
    """The loss; None: the model returns its loss."""
    metric: Callable[..., Any] | None
    evaluation: Any
    evaluation_name: str
    optimizer: str
    seed: int
    device: torch.device
    clip_norm: float | None = None
    """The largest norm of all gradients of a model together."""
    precision: str = "fp32"
    """One of `PRECISIONS`."""
    schedule: Schedule | None = None
    grad_accum: int = 1
    """The batches of a step, whose mean gradient it uses."""
    param_groups: Grouping | None = None
    """Gives parameters of a model values of their own."""

    @property
    def users_functions(self) -> tuple[Any, ...]:
        """What a step calls of the user's besides the model."""
        return (self.loss,)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward and loss."""
        return torch.autocast(self.device.type, PRECISIONS[self.precision], enabled=self.precision != "fp32")

    @property
    def is_scaled(self) -> bool:
        """Whether losses are scaled, so that small gradients do not become zero."""
        return self.precision == "amp-fp16"

    def shared_names(self) -> set[str]:
        """What models that train as one have to agree on, if a sweep sets it."""
        return {*named_parameters(self.factory), *named_parameters(self.data), OPTIMIZER} - {SEED}

    def other_names(self) -> set[str]:
        """What a sweep could set besides the hyper-parameters of optimizers."""
        scheduled = () if self.schedule is None else self.schedule.parameters
        return {*named_parameters(self.factory), *named_parameters(self.data), *scheduled, SEED}

    def check_names(self, sweeps: Mapping[str, Any], optimizers: Iterable[str]) -> None:
        """Raises UserError for a name that is a parameter of no part, or a parameter that needs a value and has none.

        `optimizers`: those of all trials.
        """
        of_optimizers = {name: None for each in optimizers for name in defaults_of(each)}
        named = ", ".join(optimizers)
        known = [*of_optimizers, *sorted(self.other_names()), OPTIMIZER]
        for name in sweeps:
            if name not in known:
                raise UserError(
                    f"--sweep {name}: neither {named}, {self.factory_name} nor {self.data_name} has a"
                    f" parameter {name}{closest(name, known)}; {named} has {', '.join(of_optimizers)}"
                )
        self._check_callable(self.factory, self.factory_name, named_parameters(self.factory), sweeps)
        if callable(self.data):
            self._check_callable(self.data, self.data_name, named_parameters(self.data), sweeps)
        if self.schedule is not None:
            given = [*sweeps, *of_optimizers]
            self._check_callable(self.schedule.function, self.schedule.name, self.schedule.parameters, given)

    @staticmethod
    def _check_callable(function: Any, name: str, parameters: Iterable[str], sweeps: Iterable[str]) -> None:
        needed = [each for each in parameters if _needs(function, each) and each not in sweeps]
        if needed:
            raise UserError(
                f"{name} needs {', '.join(needed)}: give it with --sweep {needed[0]}=VALUE, or a function without it"
            )

    def optimizer_of(self, values: Mapping[str, Value]) -> str:
        """The optimizer of a trial."""
        return str(values.get(OPTIMIZER, self.optimizer))

    def optimizer_values(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """The values of a trial that are hyper-parameters of its optimizer."""
        return {name: value for name, value in values.items() if name in DEFAULTS[self.optimizer_of(values)]}

    def values_at(self, step: int, steps: int | None, values: Mapping[str, Value]) -> dict[str, float]:
        """The hyper-parameters that the schedule gives a trial for this update; none without a schedule."""
        if self.schedule is None or steps is None:
            return {}
        return self.schedule.values_at(min(step, steps - 1), steps, self.optimizer_of(values), values)

    def model(self, values: Mapping[str, Value]) -> nn.Module:
        """The model of a trial as it would start alone: the seed is set first."""
        torch.manual_seed(int(values.get(SEED, self.seed)))
        made = users_own(self.factory_name, lambda: self.factory(**_taken(self.factory, values)))
        if not isinstance(made, nn.Module):
            raise UserError(f"{self.factory_name} returned {type(made).__name__}, not a torch.nn.Module")
        for name, module in made.named_modules():
            if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                raise UserError(
                    f"{self.factory_name}: the gradient of {name or type(module).__name__} is sparse, which models as"
                    " one cannot have: make it with sparse=False"
                )
        return made.to(self.device).train()

    def batches(self, values: Mapping[str, Value]) -> Iterator[tuple[Any, int]]:
        """The batches of one epoch on the device, each with its number of samples."""
        return self._batches(self.data, self.data_name, values)

    def evaluation_batches(self, values: Mapping[str, Value]) -> Iterator[tuple[Any, int]]:
        """The batches of the evaluation; those of the training if there are no others."""
        if self.evaluation is None:
            return self.batches(values)
        return self._batches(self.evaluation, self.evaluation_name, values)

    def _batches(self, source: Any, name: str, values: Mapping[str, Value]) -> Iterator[tuple[Any, int]]:
        iterator = self._iterator(source, name, values)
        ended = object()
        while (batch := users_own(name, lambda: next(iterator, ended))) is not ended:
            yield self._on_device(batch, name)

    @staticmethod
    def _iterator(source: Any, name: str, values: Mapping[str, Value]) -> Iterator[Any]:
        made = users_own(name, lambda: source(**_taken(source, values))) if callable(source) else source
        if not isinstance(made, Iterable):
            raise UserError(f"{name} gave {type(made).__name__}, not batches that can be iterated")
        return users_own(name, lambda: iter(made))

    def check_interruptible(self, values: Mapping[str, Value]) -> None:
        """Raises UserError if a second loop over the batches of the training would disturb one that is under way."""
        one, other = (self._iterator(self.data, self.data_name, values) for _ in range(2))
        if one is other:
            raise UserError(
                f"--halving: {self.data_name} iterates over its batches only once at a time, as a DataLoader with"
                " persistent_workers=True does, but trials are evaluated on them in between: give --eval"
            )

    def _on_device(self, batch: Any, name: str) -> tuple[Any, int]:
        if isinstance(batch, Mapping):
            moved: Any = {key: self._moved(value) for key, value in batch.items()}
            tensors = [each for each in moved.values() if isinstance(each, Tensor)]
        elif isinstance(batch, (tuple, list)) and len(batch) >= 2:
            moved = tuple(self._moved(value) for value in batch)
            tensors = [each for each in moved if isinstance(each, Tensor)]
        else:
            raise UserError(f"{name} gave {type(batch).__name__} for a batch: it has to be (x, y) or a dict of tensors")
        if not tensors:
            raise UserError(f"{name} gave a batch without tensors")
        return moved, len(tensors[0]) if tensors[0].dim() else 1

    def _moved(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, Tensor) else value

    def loss_of(self, model: Callable[..., Any], batch: Any) -> Any:
        """The loss of one batch. `model` is called like a module."""
        with self.autocast():
            return self._loss(*self._outputs(model, batch))

    def loss_and_metric_of(self, model: Callable[..., Any], batch: Any) -> tuple[Any, Any]:
        """The loss and the metric of one batch. Without a metric the loss takes its place."""
        with self.autocast():
            output, target = self._outputs(model, batch)
            loss = self._loss(output, target)
            if self.metric is None:
                return loss, loss
            if output is loss:
                raise UserError("--metric: the model returns its loss alone: let it return a dict of loss and logits")
            return loss, self.metric(getattr(output, "logits", output), target)

    def _outputs(self, model: Callable[..., Any], batch: Any) -> tuple[Any, Any]:
        if not isinstance(batch, Mapping):
            *inputs, target = batch
            if self.loss is None and _takes(model, len(batch)):
                return model(*batch), target
            return model(*inputs), target
        name = next((each for each in _TARGETS if each in batch), None)
        target = batch[name] if name is not None else None
        if self.loss is None:
            return model(**batch), target
        if name is None:
            raise UserError(
                f"{self.data_name} gave a batch without a target: a dict needs one of {', '.join(_TARGETS)}"
            )
        return model(**{key: value for key, value in batch.items() if key != name}), target

    def _loss(self, output: Any, target: Any) -> Any:
        return one_number(self.loss(output, target) if self.loss is not None else _own_loss(output))


def one_number(loss: Any, dims: int = 0) -> Tensor:
    """The loss as a tensor that is a single number apart from its first `dims` dimensions. Raises UserError."""
    if not isinstance(loss, Tensor) or loss.dim() != dims:
        shape = tuple(loss.shape[dims:]) if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(f"the loss has to be one number, not {shape}")
    return loss


def _takes(model: Callable[..., Any], arguments: int) -> bool:
    """Whether forward of the model takes so many arguments by position."""
    kinds = [each.kind for each in inspect.signature(getattr(model, "forward", model)).parameters.values()]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(each in by_place for each in kinds) >= arguments


def _own_loss(output: Any) -> Any:
    first = output[0] if isinstance(output, tuple) and output else output  # of (loss, logits)
    if isinstance(first, Tensor) and first.dim() == 0:
        return first
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise UserError("the model returns no loss of its own: give --loss NAME, such as cross_entropy")
    return loss


def named_loss(text: str) -> Callable[..., Any] | None:
    """The loss of that name: of torch.nn.functional, or MODULE:FUNCTION; None for `model`. Raises UserError."""
    if text == "model":
        return None
    if ":" in text:
        return _function(text, "--loss")
    found = getattr(functional, text, None)
    if not callable(found) or text.startswith("_"):
        known = [name for name in dir(functional) if name.endswith(("loss", "cross_entropy", "logits"))]
        raise UserError(f"--loss {text}: torch.nn.functional has no such function{closest(text, known)}")
    return found  # type: ignore[no-any-return]


def named_metric(text: str | None) -> Callable[..., Any] | None:
    """The metric of that name: `accuracy`, or MODULE:FUNCTION of output and target. Raises UserError."""
    if text is None:
        return None
    if text == "accuracy":
        return accuracy
    return _function(text, "--metric")


def _function(text: str, option: str) -> Callable[..., Any]:
    found = find(*split_name(text, f"MODULE:FUNCTION, which {option} {text.partition(':')[0]} is not either"))
    if not callable(found):
        raise UserError(f"{option} {text}: it is no function")
    return found  # type: ignore[no-any-return]


def _needs(function: Any, name: str) -> bool:
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def _taken(function: Any, values: Mapping[str, Value]) -> dict[str, Value]:
    taken = named_parameters(function)
    return {name: value for name, value in values.items() if name in taken}


@dataclass(frozen=True)
class TaskSpec:
    """A task as it was typed, for processes that load it again."""

    model: str
    data: str
    loss: str = "cross_entropy"
    metric: str | None = None
    evaluation: str | None = None
    optimizer: str = "adam"
    seed: int = 0
    device: str = "cpu"
    clip_norm: float | None = None
    precision: str = "fp32"
    schedule: str | None = None
    grad_accum: int = 1
    param_groups: str | None = None

    def load(self) -> Task:
        """Imports everything that is named. Raises UserError."""
        defaults_of(self.optimizer)
        if self.precision not in PRECISIONS:
            raise UserError(f"--precision {self.precision}: known are {', '.join(PRECISIONS)}")
        factory = find(*split_name(self.model, "MODULE:FACTORY, such as models.small:make_model"))
        if not callable(factory) or (isinstance(factory, nn.Module)):
            raise UserError(f"{self.model} is no function: it has to return a new model at each call")
        data = find(*split_name(self.data, "MODULE:BATCHES, such as data.digits:batches"))
        held = None if self.evaluation is None else find(*split_name(self.evaluation, "MODULE:BATCHES"))
        return Task(
            factory=factory,
            factory_name=self.model,
            data=data,
            data_name=self.data,
            loss=named_loss(self.loss),
            metric=named_metric(self.metric),
            evaluation=held,
            evaluation_name=self.evaluation or "",
            optimizer=self.optimizer,
            seed=self.seed,
            device=torch.device(self.device),
            clip_norm=self.clip_norm,
            precision=self.precision,
            schedule=named_schedule(self.schedule),
            grad_accum=self.grad_accum,
            param_groups=None if self.param_groups is None else _function(self.param_groups, "--param-groups"),
        )


def device_of(name: str) -> str:
    """The device; `auto` is a CUDA device if there is one. Raises `UserError` for a device that does not exist here."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {name}: known are auto, cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"
