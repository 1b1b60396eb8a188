"""Traces one training step of a model on tensors without data, to find its operators and its memory.

Forward, loss, backward and update run as the model defines them, on fake tensors; every operator that would run on a
GPU is listed. This is done at two batch sizes, which shows what follows the batch (`trace_growth`).

`trace_recorder` sees every operator, and `trace_operators` describes it. `trace_cuda` replaces what would be different
on a GPU, `trace_values` answers if a model asks for a value, `trace_memory` follows the memory, and `trace_fusion`
estimates what torch.compile would join.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.model.operators import Layer, StepMemory, StepOperators, highest
from ddlprof.operators import trace_fusion, trace_growth, trace_memory, trace_optimizers, trace_values
from ddlprof.operators.features import has_channels_last, owned_layers, precision_of
from ddlprof.operators.layer_cuts import with_cuts
from ddlprof.operators.repeats_splice import splice
from ddlprof.operators.trace_cuda import cuda_autocast, cuda_operators
from ddlprof.operators.trace_memory import Storages
from ddlprof.operators.trace_operators import OperatorCall
from ddlprof.operators.trace_recorder import OperatorTracer
from ddlprof.operators.trace_repeats import Repeats
from ddlprof.torch_private import fake, operators

PRECISIONS = ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
OPTIMIZERS = (
    "none", "sgd", "sgd-momentum", "adam", "adamw", "amsgrad", "nadam", "radam", "adamax", "adagrad", "rmsprop",
    "adadelta", "adafactor", "muon",
)  # fmt: skip
"""The updates that can be traced. One of `VARIANTS` may follow, as in adamw-fused."""
VARIANTS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True}, "fused": {"fused": True, "foreach": False}, "single": {"foreach": False},
}  # fmt: skip
"""How an update is done. foreach is torch's default on CUDA."""


_MOST_MISSING = 0.02
"""The share of bytes of operators without a counterpart at another batch, above which this is reported."""


class BackwardFailed(Exception):
    """Forward ran, but backward did not. The text says why."""


@dataclass(frozen=True)
class StepSettings:
    batch: int = 8
    precision: str = "fp32"
    optimizer: str = "adamw"
    """A name of `OPTIMIZERS`, maybe followed by one of `VARIANTS`."""
    training: bool = True
    checkpointing: bool = False
    compiled: bool = False

    def check(self) -> None:
        """Raises UserError if the precision or the optimizer is not known."""
        if self.precision not in PRECISIONS:
            raise UserError(f"--precision {self.precision}: not known; one of {', '.join(PRECISIONS)}")
        name, _ = named_update(self.optimizer)
        if name not in OPTIMIZERS:
            raise UserError(
                f"--optimizer {self.optimizer}: not known; one of {', '.join(OPTIMIZERS)}, with -fused, -foreach or"
                " -single after it"
            )


def named_update(text: str) -> tuple[str, str]:
    """The optimizer and the variant in `adamw-fused`. If the text has none it is torch's default on CUDA: foreach, but
    of Adafactor and Muon one parameter after the other."""
    name, _, variant = text.rpartition("-")
    return (name, variant) if variant in VARIANTS else (text, "single" if text in ("adafactor", "muon") else "foreach")


@dataclass(frozen=True)
class Inputs:
    """The arguments of the model's forward."""

    args: list[Any]
    kwargs: dict[str, Any]

    def tensors(self) -> list[Any]:
        """All tensors among them."""
        return [*self.args, *self.kwargs.values()]


def trace_step(
    model: Any, make_inputs: Callable[[int], Inputs], settings: StepSettings, plain: StepOperators | None = None
) -> StepOperators:
    """The step of `model`, whose tensors may be real, meta or fake; they are fake afterwards.

    `make_inputs`: makes the inputs for a batch, with fake tensors switched on. `plain`: with checkpointing, the step
    without, where it is known already; what a block recomputes is visible only there. Raises the errors of the model's
    forward, BackwardFailed if only backward fails, and UserError for unknown settings.
    """
    if settings.checkpointing and plain is None:
        plain = trace_step(model, make_inputs, replace(settings, checkpointing=False, optimizer="none"))
    _initialize_lazy(model, make_inputs)
    mode = fake.fake_mode_of(model)
    with mode:
        to_fake(model)
        settings = _prepare(model, settings)
        without_update = replace(settings, optimizer="none")  # it is the same at any batch
        if settings.checkpointing:
            checkpoint(model)
        first = _run(model, make_inputs, settings, settings.batch)
        second = _run(model, make_inputs, without_update, 2 * settings.batch)
        second.calls.extend(call for call in first.calls if call.phase == "optimizer")
    again = trace_fusion.estimate(first.calls)
    unseen = list(first.unseen)
    if trace_growth.missing(first.calls, second.calls) > _MOST_MISSING:
        unseen.append("with twice the batch it runs other operators, which are taken as they are at any batch")
    joined = sum(size for number, size in first.saved.items() if number in again)
    found = replace(_memory(first.memory, second.memory), joined_bytes=float(joined))
    if plain is not None and (of := plain.memory):
        found = replace(found, layer_bytes=of.layer_bytes, kept_bytes=of.kept_bytes, temporary_bytes=of.temporary_bytes)
    return StepOperators(
        batch=settings.batch, precision=settings.precision,
        operators=trace_growth.merged(first.calls, second.calls, settings.compiled),
        optimizer=settings.optimizer if settings.training else "none",
        training=settings.training, checkpointing=settings.checkpointing, compiled=settings.compiled,
        channels_last=has_channels_last(model),
        memory=found, plain_memory=plain.memory if plain is not None else None, unseen=tuple(unseen),
        layers=first.layers,
    )  # fmt: skip


def _initialize_lazy(model: Any, make_inputs: Callable[[int], Inputs]) -> None:
    """Gives lazy modules their sizes, for which they must be called once with real tensors."""
    import torch

    lazy: Callable[[Any], bool] = torch.nn.parameter.is_lazy
    if any(lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        with torch.no_grad():
            inputs = make_inputs(2)
            model(*inputs.args, **inputs.kwargs)


def to_fake(model: Any) -> None:
    """Replaces the model's parameters and buffers by tensors without data of the same shapes. Tied ones stay tied."""
    import torch

    done: dict[int, Any] = {}

    def without_data(tensor: Any) -> Any:
        if fake.is_fake(tensor):
            return tensor
        if id(tensor) not in done:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            done[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return done[id(tensor)]

    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            module.register_parameter(name, without_data(parameter))
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, without_data(buffer))


def _prepare(model: Any, settings: StepSettings) -> StepSettings:
    """Brings the model into the settings; returns these with its own precision where it is in half precision already,
    which neither fp32 nor autocast changes."""
    model.train(settings.training)
    to_half(model, settings.precision)
    held = precision_of(model)
    return replace(settings, precision=held) if held in ("bf16", "fp16") else settings


def to_half(model: Any, precision: str) -> None:
    """Converts the parameters of a model without data where a precision is half precision throughout."""
    import torch

    if precision in ("bf16", "fp16"):
        model.to(torch.bfloat16 if precision == "bf16" else torch.float16)


def is_in_fp32(model: Any) -> bool:
    """Whether all floating-point parameters and buffers are in fp32, so that converting them back restores them."""
    import torch

    tensors = [each for each in [*model.parameters(), *model.buffers()] if each.is_floating_point()]
    return bool(tensors) and all(each.dtype == torch.float32 for each in tensors)


def to_fp32(model: Any) -> None:
    """Converts the parameters of a model without data back, for which `is_in_fp32` held."""
    with fake.fake_mode_of(model):
        model.float()


def checkpoint(model: Any) -> None:
    """Makes the model recompute the activations of its blocks in backward, by its own method if it has one.

    Raises UserError if it has neither such a method nor repeated blocks.
    """
    from functools import partial

    from torch.utils.checkpoint import checkpoint as again

    for name in (
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
    ):  # transformers, version 5 and before
        if callable(own := getattr(model, name, None)):
            own()
            return
    if callable(own := getattr(model, "set_grad_checkpointing", None)):  # timm's
        with contextlib.suppress(AssertionError):
            own(True)
            return
    blocks = trace_memory.blocks(model)
    if not blocks:
        raise UserError("--checkpointing: the model has no repeated blocks that could be computed again")
    for block in blocks:
        if getattr(block.forward, "func", None) is again:  # asked for before
            continue
        block.forward = partial(again, block.forward, use_reentrant=False, preserve_rng_state=False)


@dataclass
class _Run:
    calls: list[OperatorCall]
    memory: StepMemory
    saved: dict[int, int]
    """The bytes of the storages that are alive after forward."""
    unseen: list[str]
    layers: tuple[Layer, ...]


def _run(model: Any, make_inputs: Callable[[int], Inputs], settings: StepSettings, batch: int) -> _Run:
    """One step at one batch size. Equal blocks are traced once where that gives the same."""
    storages = Storages()
    recorder = OperatorTracer(storages)
    repeats = Repeats(model, recorder)
    if repeats.groups:
        try:
            return _traced(model, make_inputs, settings, batch, recorder, repeats)
        except Exception:  # what is wrong with the model comes again
            storages = Storages()
            recorder = OperatorTracer(storages)
        finally:
            repeats.remove()
    return _traced(model, make_inputs, settings, batch, recorder, None)


def _traced(
    model: Any, make_inputs: Callable[[int], Inputs], settings: StepSettings, batch: int, recorder: OperatorTracer,
    repeats: Repeats | None,
) -> _Run:  # fmt: skip
    import torch

    storages = recorder.storages
    for tensor in [*model.parameters(), *model.buffers()]:
        storages.number(tensor, outside=True, weight=True)
    inputs = make_inputs(batch)
    for tensor in inputs.tensors():
        storages.number(tensor, outside=True)
    watched = trace_memory.Blocks(model, storages)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(cuda_operators(recorder))
            stack.enter_context(recorder)
            stack.enter_context(trace_values.texts())
            stack.enter_context(trace_values.answering())
            stack.enter_context(torch.set_grad_enabled(settings.training))
            with _precision(settings.precision):
                output = model(*inputs.args, **inputs.kwargs)
                loss = loss_of(output) if settings.training else None
            saved = storages.alive()
            if loss is not None:
                recorder.phase = "backward"
                _backward(loss)
            gradients = {storages.number(p.grad) for p in model.parameters() if p.grad is not None}
            if repeats is not None:
                saved = splice(repeats.groups, recorder, saved, gradients)
            found = trace_memory.step_memory(model, storages, saved, watched, inputs.tensors(), gradients)
            del output, loss
            if settings.training:
                _update(model, settings, recorder)
    finally:
        watched.remove()
        for parameter in model.parameters():
            parameter.grad = None
    sizes = {number: storages.all[number].bytes for number in saved}
    return _Run(recorder.calls, found, sizes, _unseen(recorder), _layers(model, recorder, saved))


def _layers(model: Any, recorder: OperatorTracer, saved: list[int]) -> tuple[Layer, ...]:
    """The layers, with the FLOPs of operators in forward that read a weight, or a copy of it in another type, and with
    what passes between them. `saved`: storages alive after forward."""
    flops: defaultdict[int, float] = defaultdict(float)
    for call in recorder.calls:
        if call.phase == "forward" and call.flops:
            read = ((access.bytes, recorder.storages.weight(access.storage)) for access in call.reads)
            weights = [(size, weight) for size, weight in read if weight is not None]
            if weights:
                flops[max(weights)[1]] += call.flops  # not of the bias
    storages: dict[Hashable, int] = {id(p): recorder.storages.number(p) for p in model.parameters()}
    found = owned_layers([model], {id(p): flops[storages[id(p)]] for p in model.parameters()})
    of_layers = [[storages[key] for key in keys if key in storages] for _, keys in found]
    return with_cuts([layer for layer, _ in found], of_layers, recorder.calls, recorder.storages, saved)


def _backward(loss: list[Any]) -> None:
    import torch

    if not loss:
        raise BackwardFailed("nothing that it returns has a gradient")
    try:
        torch.autograd.backward(loss)
    except Exception as error:
        raise BackwardFailed(str(error).partition("\n")[0]) from None


def loss_of(output: Any) -> list[Any]:
    """Where backward begins: the model's own loss, else the sum of its logits, else of all results with a gradient."""
    import torch

    if (own := _named(output, "loss")) is not None:
        return [own.sum()] if own.dim() else [own]
    logits = _named(output, "logits")
    leaves = [logits] if logits is not None else operators.leaves(_without_caches(output))
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return [leaf.sum() if leaf.dim() else leaf for leaf in found]


def _named(output: Any, name: str) -> Any:
    import torch

    value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
    return value if isinstance(value, torch.Tensor) and value.requires_grad else None


def _without_caches(output: Any) -> Any:
    if isinstance(output, dict):
        return [value for key, value in output.items() if "past_key_values" not in str(key)]
    return output


@contextlib.contextmanager
def _precision(precision: str) -> Iterator[None]:
    import torch

    if not precision.startswith("amp-"):
        yield
        return
    with cuda_autocast(torch.bfloat16 if precision == "amp-bf16" else torch.float16):
        yield


def _update(model: Any, settings: StepSettings, recorder: OperatorTracer) -> None:
    parameters = [p for p in model.parameters() if p.grad is not None]
    if settings.optimizer == "none" or not parameters:
        return
    recorder.phase = "optimizer"
    if settings.precision == "amp-fp16":  # the scaler checks for overflows and divides by its factor
        trace_optimizers.unscale([p.grad for p in parameters], recorder)
    name, variant = named_update(settings.optimizer)
    matrices = _matrices(model, parameters) if name == "muon" else []
    others = [p for p in parameters if not any(p is matrix for matrix in matrices)]
    asked = [("muon", matrices), ("adamw-fused", others)] if name == "muon" else [(settings.optimizer, parameters)]
    optimizers = [operators.asks_no_device(make_optimizer(text, mine)) for text, mine in asked if mine]
    with recorder.without_listing():  # the first update creates the states
        for optimizer in optimizers:
            optimizer.step()
    before = len(recorder.calls)
    for optimizer in optimizers:
        optimizer.step()
    recorder.calls[before:] = trace_optimizers.joined(recorder.calls[before:], parameters, f"_{variant}_{name}_")


def _matrices(model: Any, parameters: list[Any]) -> list[Any]:
    """The parameters that Muon updates: matrices, but for embeddings and what has their shape, a model's last layer
    (https://kellerjordan.github.io/posts/muon). AdamW updates the others."""
    import torch

    tables = {m.weight.shape for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    return [p for p in parameters if p.dim() == 2 and p.shape not in tables]


def make_optimizer(text: str, parameters: list[Any]) -> Any:
    """An optimizer of torch.optim for `adamw`, `adamw-fused`, `sgd-momentum`, ... Raises UserError."""
    import torch

    name, variant = named_update(text)
    special: dict[str, dict[str, Any]] = {"sgd-momentum": {"momentum": 0.9}, "amsgrad": {"amsgrad": True}}
    options = special.get(name, {})
    known = {each.lower(): value for each, value in vars(torch.optim).items() if isinstance(value, type)}
    make = known.get({"sgd-momentum": "sgd", "amsgrad": "adam"}.get(name, name))
    if make is None:
        raise UserError(f"--optimizer {text}: this version of torch has none")
    try:
        return make(parameters, lr=1e-3, **options, **VARIANTS[variant])
    except (TypeError, RuntimeError):
        if text.endswith("-fused"):
            raise UserError(f"--optimizer {text}: torch has no fused one") from None
    with contextlib.suppress(TypeError):
        return make(parameters, lr=1e-3, **options, foreach=variant == "foreach")
    return make(parameters, lr=1e-3, **options)


def _memory(first: StepMemory, second: StepMemory) -> StepMemory:
    """The memory at the first batch. What is equal at twice that batch counts as not growing."""
    points = first.points
    if len(points) == len(second.points):
        rests = [(gradients, rest, twice) for (gradients, rest), (_, twice) in zip(points, second.points, strict=True)]
        fixed = [(gradients, rest, min(max(2 * rest - twice, 0.0), rest)) for gradients, rest, twice in rests]
        points = tuple((gradients + part, rest - part) for gradients, rest, part in fixed)
    first = replace(first, points=highest(points))
    if first.saved_bytes is None or second.saved_bytes is None:
        return first
    kept = 2 * first.saved_bytes - second.saved_bytes
    return replace(first, saved_fixed_bytes=min(max(kept, 0.0), first.saved_bytes))


def _unseen(recorder: OperatorTracer) -> list[str]:
    found = [
        f"{name} is counted by its results alone ({n} {'call' if n == 1 else 'calls'})"
        for name, n in sorted(recorder.opaque.items())
    ]
    if recorder.values.asked:
        found.append(f"{recorder.values.asked} values that forward asks for were taken for likely ones")
    return found
