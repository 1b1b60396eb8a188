"""The facts of a model that is not trained, and the operators of its step, on tensors with shapes but no data.

Not part of a profiled training. Counts are those of `features`, as inside a run. A model of any size is built without
its data; only small tensors have values, which a factory may read (`torch.linspace(...)[i].item()`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from ddlprof.base.errors import UserError
from ddlprof.model.manifest import ModelFacts
from ddlprof.model.operators import CountedIn, StepOperators, model_flops
from ddlprof.operators.features import model_facts
from ddlprof.operators.trace_step import (
    BackwardFailed,
    Inputs,
    StepSettings,
    is_in_fp32,
    to_fake,
    to_fp32,
    to_half,
    trace_step,
)
from ddlprof.torch_private import fake, operators

_INPUT = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?:(?P<dtype>[a-z]+[0-9]*):)?(?P<shape>[0-9]+(?:,[0-9]+)*)?", re.ASCII
)
_DEVICE = re.compile(r"(cuda|xpu|hip|mps|npu|hpu)(:\d+)?", re.ASCII)
SMALL_ELEMENTS = 4096
"""Tensors of at most so many elements have data while a model is built."""
_OF_SIZE = frozenset(["empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "normal"])
"""Operators that make a tensor with the sizes in their first list."""
_WITHOUT_CUDA = ("not compiled with CUDA", "No CUDA GPUs", "Found no NVIDIA driver", "not linked with support for cuda")


class InputSpec(NamedTuple):
    """One argument of the model's forward, for one sample."""

    shape: tuple[int, ...]
    dtype: str | None
    """The name of a torch data type; None: that of the model's parameters."""
    name: str | None = None
    """The argument's name; None: by position."""


@dataclass(frozen=True)
class ModelAlone:
    """The facts and operators of a model. `notes`: what could not be determined, and why."""

    facts: ModelFacts
    step: StepOperators | None
    notes: list[str]


def parse_input(text: str) -> InputSpec:
    """The input described by a text such as `3,224,224`, `int64:512` or `labels=int64:512`.

    Nothing after the colon means one number for each sample. Raises UserError.
    """
    import torch

    match = _INPUT.fullmatch(text)
    if match is None or not text or text.endswith("="):
        raise UserError(f"--input {text}: not the shape of a sample, such as 3,224,224 or, for tokens, int64:512")
    dtype = match["dtype"]
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"--input {text}: torch has no dtype {dtype}; known are float32, bfloat16, int64, ...")
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    return InputSpec(shape, dtype, match["name"])


def look(
    model: Any,
    inputs: list[InputSpec],
    settings: StepSettings,
    others: bool = False,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> ModelAlone:
    """The counts of `model` and, if the shapes of its inputs are given, the operators of its step; with `others`, those
    in other precisions too.

    Raises the errors of the model's forward. The model has no data afterwards.
    """
    if not inputs:
        facts = model_facts(model)
        if facts.gradient_bytes is not None:  # else it is lazy, and has no sizes yet
            with fake.fake_mode_of(model):
                to_fake(model)
                to_half(model, settings.precision)
            facts = model_facts(model)
        return ModelAlone(
            facts, None, ["FLOPs are not counted: say what one sample looks like, as in --input 3,224,224"]
        )
    wanted = _others_of(settings.precision) if others and is_in_fp32(model) else ()
    most = (1 + len(wanted)) * (1 + settings.checkpointing)
    traces = _Traces(model, _with_decoder(model, inputs), settings, lambda done: advance(done, most))
    try:
        if settings.checkpointing:  # what a block does again is seen only before it does
            traces.plain[settings.precision] = traces.without_checkpointing(settings.precision)
            for precision in wanted:
                with contextlib.suppress(Exception):  # such as types of its own that do not go with others
                    traces.plain[precision] = traces.without_checkpointing(precision)
        step = traces.step(settings.precision)
    except BackwardFailed as error:
        step = traces.forward_alone()
        forward = _flops(step, "forward")
        notes = [f"backward is taken for twice forward, and operators are not written: it fails ({error})"]
        return ModelAlone(_with_flops(model_facts(model), forward, 2 * forward), None, notes)
    notes = [f"not seen in full: {each}" for each in step.unseen]
    facts = model_facts(model)  # as trained: lazy modules have their sizes, parameters the type of their gradients
    backward, plain = _flops(step, "backward"), traces.plain.get(settings.precision)
    again = backward - _flops(plain, "backward") if plain is not None else None
    facts = _with_flops(facts, _flops(step, "forward"), backward, again)
    found = []
    for precision in wanted:
        with contextlib.suppress(Exception):
            other = traces.step(precision)
            found.append(CountedIn(other.precision, other.operators, other.memory, other.plain_memory))
    return ModelAlone(facts, replace(step, others=tuple(found)), notes)


def _others_of(precision: str) -> tuple[str, ...]:
    """One precision of each kind but that of the one given."""
    kinds = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "amp-bf16": "amp-bf16", "amp-fp16": "amp-bf16"}
    return tuple(each for each in ("fp32", "bf16", "amp-bf16") if each != kinds[precision])


class _Traces:
    """Steps of one model in several precisions."""

    def __init__(
        self, model: Any, inputs: list[InputSpec], settings: StepSettings, advance: Callable[[int], None]
    ) -> None:
        self.plain: dict[str, StepOperators] = {}
        """Without checkpointing, by precision, where it is asked for."""
        self._model, self._inputs, self._settings = model, inputs, settings
        self._advance, self._done = advance, 0
        self._held_in: str | None = None
        """The precision of the last trace, which may have converted the model; None: there was none."""

    def step(self, precision: str) -> StepOperators:
        """As asked for, but for the precision. Raises BackwardFailed, and the errors of the model's forward."""
        return self._traced(precision, self._settings, self.plain.get(precision))

    def without_checkpointing(self, precision: str) -> StepOperators:
        """The same without checkpointing and without an update."""
        return self._traced(precision, replace(self._settings, checkpointing=False, optimizer="none"))

    def forward_alone(self) -> StepOperators:
        """The forward pass alone."""
        return self._traced(self._settings.precision, replace(self._settings, training=False))

    def _traced(self, precision: str, settings: StepSettings, plain: StepOperators | None = None) -> StepOperators:
        if self._held_in in ("bf16", "fp16") and precision != self._held_in:
            to_fp32(self._model)
        self._held_in = precision
        settings = replace(settings, precision=precision)
        step = trace_step(self._model, _maker(self._model, self._inputs, precision), settings, plain)
        self._done += 1
        self._advance(self._done)
        return step


def _with_decoder(model: Any, inputs: list[InputSpec]) -> list[InputSpec]:
    """Adds an input with as many tokens, if a model with encoder and decoder was given only the first."""
    config = getattr(model, "config", None)
    if len(inputs) == 1 and getattr(config, "is_encoder_decoder", False) and inputs[0].name in (None, "input_ids"):
        return [*inputs, inputs[0]._replace(name="decoder_input_ids")]
    return inputs


def _with_flops(facts: ModelFacts, forward: float, backward: float, again: float | None = None) -> ModelFacts:
    return replace(
        facts,
        forward_flops_per_sample=forward,
        backward_flops_per_sample=backward,
        recomputed_flops_per_sample=again,
    )


def _flops(step: StepOperators, phase: str) -> float:
    """The FLOPs of the model in a phase for one sample."""
    return sum(model_flops(each) * each.count for each in step.operators if each.phase == phase) / step.batch


def _maker(model: Any, specs: list[InputSpec], precision: str) -> Callable[[int], Inputs]:
    """A function that makes the model's inputs for a batch. Floating-point inputs have the parameters' type."""
    import torch

    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    own = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, next(floating, torch.get_default_dtype()))

    def make(batch: int) -> Inputs:
        tensors = [
            torch.empty((batch, *spec.shape), dtype=getattr(torch, spec.dtype) if spec.dtype else own) for spec in specs
        ]
        named = {spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.name is not None}
        return Inputs([t for spec, t in zip(specs, tensors, strict=True) if spec.name is None], named)

    return make


def build(factory: Callable[[], Any]) -> Any:
    """The model that `factory` makes, with large tensors without data, on the CPU whatever device it asks for. Raises
    the errors of the factory.

    If the factory does not work with such tensors, it is called again with ordinary ones. Raises UserError if it needs
    a GPU that does not exist.
    """
    try:
        with contextlib.suppress(Exception), on_the_host(), large_ones_empty():
            return factory()
        with on_the_host():
            return factory()  # with data; errors of the factory itself occur again
    except (AssertionError, RuntimeError) as error:
        if any(text in str(error) for text in _WITHOUT_CUDA):
            raise UserError(
                "the model asks for CUDA while it is built, and there is none here; let the factory build it on the CPU"
            ) from None
        raise


def on_the_host() -> Any:
    """A context in which tensors are made on the CPU, also where the code names another device, and stay there.

    So figures are the same with and without a GPU, and no context is opened on one.
    """
    import torch

    def named(value: Any) -> Any:
        """The CPU in place of another device; "meta" has no data anywhere."""
        is_device = isinstance(value, torch.device) or (isinstance(value, str) and _DEVICE.fullmatch(value))
        return torch.device("cpu") if is_device and torch.device(value).type not in ("cpu", "meta") else value

    class OnTheHost(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.device:  # a name is not yet a place
                return func(*args, **kwargs)
            if func is torch.Tensor.cuda:
                return args[0]
            return func(*map(named, args), **{key: named(value) for key, value in kwargs.items()})

    return OnTheHost()


@contextlib.contextmanager
def large_ones_empty() -> Iterator[None]:
    """In this context, tensors of more than `SMALL_ELEMENTS` elements are made without data."""
    base: Any = operators.mode_class()
    mode = fake.fake_mode()

    class LargeOnesEmpty(base):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if operators.packet(func).__name__ in _OF_SIZE and str(kwargs.get("device") or "cpu") == "cpu":
                sizes = next((each for each in args if isinstance(each, (list, tuple))), ())
                if prod(sizes) > SMALL_ELEMENTS:
                    with mode:
                        return func(*args, **kwargs)
            return func(*args, **kwargs)

    with LargeOnesEmpty():
        yield
