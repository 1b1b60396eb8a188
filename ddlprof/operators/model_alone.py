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
from ddlprof.model.operators import StepOperators
from ddlprof.operators.features import model_facts
from ddlprof.operators.trace_step import BackwardFailed, Inputs, StepSettings, to_fake, to_half, trace_step
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


def look(model: Any, inputs: list[InputSpec], settings: StepSettings) -> ModelAlone:
    """The counts of `model` and, if the shapes of its inputs are given, the operators of its step.

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
    make_inputs = _maker(model, _with_decoder(model, inputs), settings.precision)
    try:
        step = trace_step(model, make_inputs, settings)
    except BackwardFailed as error:
        step = trace_step(model, make_inputs, replace(settings, training=False))
        forward = _flops(step, "forward")
        notes = [f"backward is taken for twice forward, and operators are not written: it fails ({error})"]
        return ModelAlone(_with_flops(model_facts(model), forward, 2 * forward), None, notes)
    notes = [f"not seen in full: {each}" for each in step.unseen]
    facts = model_facts(model)  # as trained: lazy modules have their sizes, parameters the type of their gradients
    return ModelAlone(_with_flops(facts, _flops(step, "forward"), _flops(step, "backward")), step, notes)


def _with_decoder(model: Any, inputs: list[InputSpec]) -> list[InputSpec]:
    """Adds an input with as many tokens, if a model with encoder and decoder was given only the first."""
    config = getattr(model, "config", None)
    if len(inputs) == 1 and getattr(config, "is_encoder_decoder", False) and inputs[0].name in (None, "input_ids"):
        return [*inputs, inputs[0]._replace(name="decoder_input_ids")]
    return inputs


def _with_flops(facts: ModelFacts, forward: float, backward: float) -> ModelFacts:
    return replace(facts, forward_flops_per_sample=forward, backward_flops_per_sample=backward)


def _flops(step: StepOperators, phase: str) -> float:
    """The FLOPs of a phase for one sample."""
    return sum(each.flops * each.count for each in step.operators if each.phase == phase) / step.batch


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
