"""Modules, their wrappers, and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.torch_private.names import PrivateName, find, reader

_FORWARD = "the forward of modules is not measured"
_FACTS = "layers, parameters and gradients of the model are not counted"


def _module(torch: Any) -> Any:
    return torch.nn.Linear(1, 1)


def _step(torch: Any) -> Any:
    torch.optim.SGD([torch.ones(1, requires_grad=True)])
    return torch.optim.SGD.step


NAMES = (
    PrivateName("torch.nn:Module._compiled_call_impl", "holds what times the calls of one module", _FORWARD),
    PrivateName("torch.nn:Module._call_impl", "times the calls of one module, and names sampled stacks", _FORWARD),
    PrivateName(
        "torch.nn:Module._wrapped_call_impl",
        "finds the module that a loop of the script calls",
        "rounds of a loop without an optimizer are not told apart by the module that they call",
    ),
    PrivateName(
        "torch:_C._is_tracing",
        "tells whether torch.jit.trace runs, at each call of a module",
        "a step takes a microsecond longer",
    ),
    PrivateName(
        "torch:_C._functorch.get_interpreter_stack",
        "tells whether a module is called under torch.vmap, which hides dimensions",
        "a batch under torch.vmap reads as one sample",
    ),
    PrivateName(
        "torch.nn:Module._replicate_for_data_parallel",
        "takes the timing off the copies that DataParallel makes of a module",
        "modules cannot be timed under DataParallel",
    ),
    PrivateName(
        "torch.jit._recursive:ignored_attributes",
        "keeps what times a module out of what torch.jit.script compiles",
        "torch.jit.script fails for the module that is trained",
    ),
    PrivateName(
        "torch.nn:Module()._parameters",
        "walks parameters without calling methods of the script",
        _FACTS,
        example=_module,
    ),
    PrivateName(
        "torch.nn:Module()._buffers",
        "walks buffers without calling methods of the script",
        "activations that a step keeps may be counted with buffers of the model among them",
        example=_module,
    ),
    PrivateName(
        "torch.nn:Module()._modules", "walks modules without calling methods of the script", _FACTS, example=_module
    ),
    PrivateName(
        "torch._dynamo.eval_frame:OptimizedModule()._orig_mod",
        "finds the layers inside the module that torch.compile returns",
        "ddlprof sparsity names layers of a compiled model after its wrapper, too",
    ),
    PrivateName(
        "torch.nn.modules.conv:_ConvNd",
        "tells whether a model has more convolutions than linear layers",
        "the precision of a model in TF32 is told by its linear layers",
    ),
    PrivateName(
        "torch.optim:Adam()._step_supports_amp_scaling",
        "tells fused optimizers, which skip an update on the device",
        "updates that a fused optimizer skipped are not flagged",
    ),
    PrivateName(
        "torch.amp.grad_scaler:GradScaler()._per_optimizer_states",
        "tells whether a gradient scaler skipped an update on the device",
        "updates that a fused optimizer skipped are not flagged",
    ),
    PrivateName(
        "torch.optim:Optimizer.step.hooked",
        "tells whether the script has made an optimizer",
        "a script that makes its optimizer late may have steps that end with rounds of its loop",
        example=_step,
    ),
)

COMPILED_CALL = "_compiled_call_impl"
"""The slot of a module for what `Module.compile()` made of its forward; left out of pickles and copies."""
REPLICATE = "_replicate_for_data_parallel"
PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
"""Keys of a module's dictionary."""
COMPILED_WRAPPER_HOLDS = "_orig_mod"
CONVOLUTION = "_ConvNd"
"""Name of the class that all convolutions are derived from."""

CALL = "_call_impl"
"""The method that calls a module's forward with its hooks. Use `getattr`, which torch.compile can trace.

Functions of `torch.nn.modules.module` that call a module's forward end with it."""
CACHED_WEIGHT = "get_cached_parametrization"
"""The function of `torch.nn.utils.parametrize` that computes a weight once, under `cached()`."""


class StandIn:
    """Takes the place of a module's compiled call; `compiled` is the call that was there before, or None."""

    compiled: Callable[..., Any] | None


compiled_slot = reader(COMPILED_CALL)
"""Reads the slot: the function that `Module.compile()` left there, a `StandIn`, or None."""
parameters_of = reader(PARAMETERS)


def compiled_call(module: Any) -> Callable[..., Any] | None:
    """The function that `Module.compile()` made, whether we time its calls or not; None if it was not compiled."""
    call: Callable[..., Any] | None = compiled_slot(module)
    return call.compiled if isinstance(call, StandIn) else call


def keep_from_script(torch: Any) -> Callable[[], None]:
    """Has `torch.jit.script` ignore the slot; returns what undoes it."""
    ignored: list[str] | None = find(torch, "jit._recursive.ignored_attributes")
    if ignored is None or COMPILED_CALL in ignored:
        return lambda: None
    ignored.append(COMPILED_CALL)
    return lambda: ignored.remove(COMPILED_CALL) if COMPILED_CALL in ignored else None


def call_code(torch: Any) -> Any:
    """The code of the function that calls a module."""
    return getattr(reader("_wrapped_call_impl")(torch.nn.Module), "__code__", None)


def tracing(torch: Any) -> Callable[[], bool]:
    """The function that `torch.jit.is_tracing` calls through two others, to save time."""
    asked: Callable[[], bool] = find(torch, "_C._is_tracing") or torch.jit.is_tracing
    return asked


def mapped(torch: Any) -> Callable[[], bool]:
    """A function that tells whether it is called under torch.vmap."""
    transforms: Callable[[], Any] = find(torch, "_C._functorch.get_interpreter_stack") or tuple
    return lambda: any(each.key().name == "Vmap" for each in transforms() or ())


def is_made(step: Any) -> bool:
    """Whether an optimizer of the class that has this function `step` was ever made."""
    return bool(getattr(step, "hooked", False))


def skips_on_device(optimizer: Any) -> bool:
    """Whether a gradient scaler always calls this optimizer's step, which may skip the update on the device."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def scaler_state(scaler: Any, optimizer: Any) -> dict[str, Any]:
    """The state that a gradient scaler keeps for an optimizer; empty if there is none."""
    states: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    return states.get(id(optimizer), {})
