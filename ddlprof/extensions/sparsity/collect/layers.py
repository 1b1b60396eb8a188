"""The layers whose products are counted, and what one call of each multiplies."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddlprof.base.alive import instances_of
from ddlprof.collect.install import Uninstall, replace
from ddlprof.extensions.sparsity.collect.products import (
    ConvolutionCall,
    Geometry,
    LayerCall,
    LinearCall,
    Needs,
    RecurrentCall,
)
from ddlprof.extensions.sparsity.model import LayerCounts
from ddlprof.torch_private.modules import COMPILED_CALL, COMPILED_WRAPPER_HOLDS, MODULES

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
COUNTED = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, nn.LSTM, nn.GRU)
_GATES = {"LSTM": 4, "GRU": 3}


def all_modules() -> list[Any]:
    """Every module that is alive, from the garbage collector, so that the training's calls need no hook for it."""
    return [each for each in instances_of(nn.Module) if MODULES in vars(each)]


def named_layers(modules: list[Any]) -> Iterator[tuple[str, Any, bool]]:
    """Every module below an outermost module: its name there, the module, and whether torch.compile has it.

    If there are several outermost modules, names begin with the class of theirs.
    """
    children = {id(child) for module in modules for child in vars(module)[MODULES].values()}
    roots = [module for module in modules if id(module) not in children and any(True for _ in module.parameters())]
    seen: set[int] = set()
    for root in roots:
        prefix = f"{type(root).__name__}." if len(roots) > 1 else ""
        yield from _below(root, "", prefix, False, seen)


def _below(module: Any, name: str, prefix: str, compiled: bool, seen: set[int]) -> Iterator[tuple[str, Any, bool]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    compiled = (
        compiled or vars(module).get(COMPILED_CALL) is not None or COMPILED_WRAPPER_HOLDS in vars(module)[MODULES]
    )
    yield prefix + (name or type(module).__name__), module, compiled
    for key, child in vars(module)[MODULES].items():
        if child is not None:
            wrapped = key in (COMPILED_WRAPPER_HOLDS, "module")  # torch.compile's; DistributedDataParallel's
            yield from _below(child, name if wrapped else f"{name}.{key}".lstrip("."), prefix, compiled, seen)


def empty_counts(name: str, module: Any) -> LayerCounts:
    """The counts of a layer without any call."""
    kind = next(each.__name__ for each in (*COUNTED, nn.MultiheadAttention) if isinstance(module, each))
    return LayerCounts(name, kind, _shape(module))


def _shape(module: Any) -> str:
    if isinstance(module, nn.Linear):
        return f"{module.in_features} -> {module.out_features}"
    if isinstance(module, (nn.LSTM, nn.GRU)):
        layers = f", {module.num_layers} layers" if module.num_layers > 1 else ""
        return f"{module.input_size} -> {module.hidden_size}{layers}"
    if isinstance(module, nn.MultiheadAttention):
        return f"{module.embed_dim}, {module.num_heads} heads"
    shape = f"{module.in_channels} -> {module.out_channels}, {'x'.join(map(str, module.kernel_size))}"
    return shape + (f", {module.groups} groups" if module.groups > 1 else "")


def needs_of(module: Any, x: Any, mask_known: bool) -> Needs:
    """What backward will compute for a call of the module with x."""
    weight: Any = module.weight_hh_l0 if isinstance(module, (nn.LSTM, nn.GRU)) else module.weight
    return Needs(x.requires_grad, weight.requires_grad, mask_known)


def call_of(module: Any, x_shape: Any, y_shape: Any, needs: Needs) -> LayerCall:
    """What a call of the module with tensors of these shapes multiplies."""
    if isinstance(module, nn.Linear):
        return LinearCall(module.in_features, module.out_features, needs)
    if isinstance(module, (nn.LSTM, nn.GRU)):
        return _recurrent(module, x_shape, needs)
    channels = module.in_channels, module.out_channels
    return ConvolutionCall(x_shape, y_shape, _geometry(module), channels, isinstance(module, TRANSPOSED), needs)


def _geometry(module: Any) -> Geometry:
    sizes = zip(module.kernel_size, module.dilation, strict=True)
    if module.padding == "same":
        missing = [dilation * (kernel - 1) for kernel, dilation in sizes]
        padding = tuple((each // 2, each - each // 2) for each in missing)
    elif module.padding == "valid":
        padding = tuple((0, 0) for _ in sizes)
    else:
        padding = tuple((each, each) for each in module.padding)
    return Geometry(module.kernel_size, module.stride, module.dilation, padding, module.padding_mode, module.groups)


def _recurrent(module: Any, x_shape: Any, needs: Needs) -> RecurrentCall:
    directions = 2 if module.bidirectional else 1
    gates = _GATES["LSTM" if isinstance(module, nn.LSTM) else "GRU"] * module.hidden_size
    out = module.proj_size or module.hidden_size
    steps = math.prod(x_shape[:-1])
    recurrent = module.num_layers * directions * steps * out * gates
    deeper = (module.num_layers - 1) * directions * steps * directions * out * gates
    projection = module.num_layers * directions * steps * module.proj_size * module.hidden_size
    return RecurrentCall(x_shape[-1], directions * gates, recurrent + deeper + projection, needs)


def tensor_in(value: Any) -> Any:
    """The tensor in a layer's input or output: itself, the first of several, or the data of packed sequences."""
    if type(value) is torch.Tensor:
        return value
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return value.data
    if isinstance(value, (tuple, list)) and value:
        return tensor_in(value[0])
    return value if isinstance(value, torch.Tensor) else None


_LINEAR = "linear"


class Projections:
    """Hooks on attention modules during one counted step.

    The projections of nn.MultiheadAttention are no modules: it calls `linear` with parts of its parameters. While such
    a module runs, `linear` is replaced by a function that reports the call and calls the original.
    """

    def __init__(self, seen: Callable[[str, Any, Any, Any], None]) -> None:
        """`seen`: called for each projection with name, weight, input and output. It may raise."""
        self._seen = seen
        self._undo: Uninstall | None = None

    def hooks(self, name: str, module: Any) -> list[Any]:
        """Puts hooks on one attention module; returns their handles."""

        def before(module: Any, args: Any) -> None:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled() and self._undo is None:
                self._undo = replace(F, _LINEAR, self._telling(name, module, F.linear))

        def after(module: Any, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self.remove()

        return [module.register_forward_pre_hook(before), module.register_forward_hook(after, always_call=True)]

    def _telling(self, name: str, module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        thread = threading.get_ident()

        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            result = original(input, weight, bias)
            if threading.get_ident() == thread:
                inner = "out_proj" if weight is module.out_proj.weight else "in_proj"
                self._seen(f"{name}.{inner}", weight, input, result)
            return result

        return linear

    def remove(self) -> None:
        """Restores torch's function."""
        if self._undo is not None:
            self._undo()
            self._undo = None
