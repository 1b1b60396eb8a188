"""One counted step: hooks on the layers, what they see, and the sums at its end.

The sums stay on the device until the step is over, so that nothing waits for it earlier.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlprof.collect.compiler.dynamo import used_dynamo
from ddlprof.collect.losses import HOOK, Losses
from ddlprof.collect.sparsity import lineage
from ddlprof.collect.sparsity.attention import Projections
from ddlprof.collect.sparsity.layers import (
    COUNTED,
    DROPOUTS,
    all_modules,
    call_of,
    empty_counts,
    lstm_seen,
    named_layers,
    tensor_in,
)
from ddlprof.collect.sparsity.products import Call, LinearCall, Needs, Values
from ddlprof.model.sparsity import LayerCounts, SparsityCounts, StepCounts

_STEP = {
    "forward_macs": "forward_macs",
    "forward_needed": "forward_needed",
    "data_macs": "backward_macs",
    "data_needed": "backward_needed",
    "weight_macs": "backward_macs",
    "weight_needed": "backward_needed",
}
"""Sums of a layer that are sums of the step as well."""


class Layers:
    """The modules of the training that get hooks, found once; by weak reference, as a model may be dropped."""

    def __init__(self) -> None:
        self.compiled = used_dynamo()
        self._found: list[tuple[str, weakref.ref[Any]]] = []
        self._behind: list[tuple[str, weakref.ref[Any]]] = []
        every = list(named_layers(all_modules()))
        unknown = self.compiled and not any(compiled for _, _, compiled in every)  # a function: of which modules?
        for name, module, compiled in every:
            if isinstance(module, (*COUNTED, nn.MultiheadAttention, *DROPOUTS)):
                (self._behind if compiled or unknown else self._found).append((name, weakref.ref(module)))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from ((name, module) for name, found in self._found if (module := found()) is not None)

    def unseen(self, counts: SparsityCounts) -> list[str]:
        """Layers that have a gradient now, of torch.compile's too, but no counts."""
        seen = {each.name for each in counts.layers}
        there = [(name, found()) for name, found in (*self._found, *self._behind)]
        trained = [name for name, module in there if isinstance(module, COUNTED) and _has_gradient(module)]
        return [name for name in trained if name not in seen]


def _has_gradient(module: Any) -> bool:
    return any(each.grad is not None for each in module.parameters(recurse=False))


class Counting:
    """The hooks of one step."""

    def __init__(self, counts: SparsityCounts, layers: Layers, losses: Losses) -> None:
        self._counts, self._losses = counts, losses
        self._by_name = {each.name: each for each in counts.layers}
        self._first = not counts.layers
        self._pending: list[tuple[LayerCounts, str, Any]] = []
        self._calls: dict[str, int] = {}
        self._projections = Projections(self._guarded(self._linear))
        self._over = False
        self._handles: list[Any] = []
        for name, module in layers:
            self._handles += self._hooks(name, module)

    def _hooks(self, name: str, module: Any) -> list[Any]:
        if isinstance(module, DROPOUTS):
            return [module.register_forward_hook(self._guarded(self._dropout))] if self._first else []
        if isinstance(module, nn.MultiheadAttention):
            return self._projections.hooks(name, module)
        hook = self._guarded(partial(self._forward, name))
        return [module.register_forward_hook(hook, with_kwargs=True)]

    def _guarded(self, function: Callable[..., None], in_backward: bool = False) -> Callable[..., None]:
        """Under torch.compile it does nothing, and what fails is counted; torch.compile sees no more than that."""

        def hook(*args: Any) -> None:
            if torch.compiler.is_compiling() or self._over or not (in_backward or torch.is_grad_enabled()):
                return
            try:
                with torch.no_grad():
                    function(*args)
            except Exception as error:
                self._losses.add(HOOK, error)

        return hook

    def _dropout(self, module: Any, args: Any, output: Any) -> None:
        if module.training and output.requires_grad:
            lineage.mark_mask(output)

    def _forward(self, name: str, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        x, y = tensor_in(given), tensor_in(output)
        if x is None or not x.numel() or y is None or not y.requires_grad:
            return
        layer = self._layer(name, lambda: empty_counts(name, module))
        self._counts.device = x.device.type
        known = self._mask_is_known(layer, x, y)
        if isinstance(module, nn.LSTM) and self._first and not any(each.name == name for each in self._counts.lstms):
            self._counts.lstms.append(lstm_seen(name, module, x, packed=x is not given))
        self._await_gradient(layer, call_of(module, x, y, known, self._first), y)

    def _linear(self, name: str, weight: Any, x: Any, y: Any) -> None:
        """A product of a layer that is no module: a projection inside attention."""
        if not y.requires_grad or not x.numel():
            return
        layer = self._layer(name, lambda: LayerCounts(name, "Linear", f"{weight.shape[1]} -> {weight.shape[0]}"))
        needs = Needs(x.requires_grad, weight.requires_grad, self._mask_is_known(layer, x, y))
        self._await_gradient(layer, LinearCall(x, weight.shape[0], needs, self._first), y)

    def _layer(self, name: str, make: Callable[[], LayerCounts]) -> LayerCounts:
        if name not in self._by_name:
            self._by_name[name] = make()
            self._counts.layers.append(self._by_name[name])
        return self._by_name[name]

    def _mask_is_known(self, layer: LayerCounts, x: Any, y: Any) -> bool:
        """Read off the graph in the first step that is counted, for all calls of the layer."""
        if self._first:
            if not layer.before:
                layer.mask_known = x.grad_fn is not None and lineage.mask_is_known(x)
                for path in lineage.paths(x):
                    layer.before = layer.before or list(path.operators)
                    if (previous := self._by_name.get(path.layer)) is not None and not previous.after:
                        previous.after = list(reversed(path.operators))
                layer.before = layer.before or lineage.chain(x)
            lineage.mark(y, layer.name)
        return layer.mask_known

    def _await_gradient(self, layer: LayerCounts, call: Call, y: Any) -> None:
        forward: list[Values] = [call.forward | {"calls": 1}]

        def hook(gradient: Any) -> None:
            values = call.backward(gradient)
            for each in (values, *forward):
                for name, value in each.items():
                    self._pending.append((layer, name, value))
            forward.clear()  # a second backward of the same graph makes no second forward

        y.register_hook(self._guarded(hook, in_backward=True))

    def remove(self) -> None:
        """Takes the hooks back."""
        self._over = True
        for handle in self._handles:
            handle.remove()
        self._projections.remove()

    def end(self, step: int) -> bool:
        """Adds everything up; whether any layer was seen."""
        self.remove()
        sums = StepCounts(step)
        for (layer, name, _), value in zip(self._pending, _numbers([each[2] for each in self._pending]), strict=True):
            setattr(layer, name, (getattr(layer, name) or 0) + value)
            if name in _STEP:
                setattr(sums, _STEP[name], getattr(sums, _STEP[name]) + value)
        if self._pending:
            self._counts.steps.append(sums)
            self._counts.threads = torch.get_num_threads()
        return bool(self._pending)


def _numbers(values: list[Any]) -> list[int]:
    """The values as whole numbers: those on a device are fetched at once."""
    tensors: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            tensors.setdefault(value.device, []).append(place)
    found = list(values)
    for places in tensors.values():
        together = torch.stack([values[place].double() for place in places]).tolist()
        for place, value in zip(places, together, strict=True):
            found[place] = value
    return [round(value) for value in found]
