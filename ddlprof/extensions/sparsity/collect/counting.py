"""One counted step: hooks on the layers, the tensors that they see, and sums of their zeros.

The sums stay on the device until the step is over, so that nothing waits for the device earlier.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlprof.collect.compiler import used_dynamo
from ddlprof.collect.drops import HOOK, Drops
from ddlprof.extensions.sparsity.collect import lineage
from ddlprof.extensions.sparsity.collect.layers import (
    COUNTED,
    DROPOUTS,
    Projections,
    all_modules,
    call_of,
    empty_counts,
    named_layers,
    needs_of,
    tensor_in,
)
from ddlprof.extensions.sparsity.collect.products import LayerCall, LinearCall, Needs
from ddlprof.extensions.sparsity.collect.zeros import LARGEST, MOST, KeptTensor, Look, Values, keep, numbers
from ddlprof.extensions.sparsity.model import LayerCounts, SparsityCounts, StepCounts

_STEP = {
    "forward_macs": "forward_macs",
    "forward_needed": "forward_needed",
    "data_macs": "backward_macs",
    "data_needed": "backward_needed",
    "weight_macs": "backward_macs",
    "weight_needed": "backward_needed",
}
"""Names of a layer's sums, and of the step's sums to which they are added as well."""


class _Call:
    """One call of a layer, and its tensors until they are counted."""

    __slots__ = ("is_counted", "layer", "needs", "of", "shapes", "x")

    def __init__(self, layer: LayerCounts, of: Any, shapes: tuple[Any, Any], needs: Needs) -> None:
        """`of`: the module; None for a projection inside attention. `shapes`: those of input and output."""
        self.layer, self.of, self.shapes, self.needs = layer, of, shapes, needs
        self.x: Any = None
        """The input: the tensor itself (`KeptTensor`), or its counts (`Look`)."""
        self.is_counted = False
        """Whether the forward was counted. A second backward of the same graph does not count it again."""


class Layers:
    """The modules that get hooks, found once. Held by weak references, as the script may drop a model."""

    def __init__(self) -> None:
        self.compiled = used_dynamo()
        self._found: list[tuple[str, weakref.ref[Any]]] = []
        self._behind: list[tuple[str, weakref.ref[Any]]] = []
        every = list(named_layers(all_modules()))
        unknown = self.compiled and not any(compiled for _, _, compiled in every)  # a compiled function
        for name, module, compiled in every:
            if isinstance(module, (*COUNTED, nn.MultiheadAttention, *DROPOUTS)):
                (self._behind if compiled or unknown else self._found).append((name, weakref.ref(module)))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from ((name, module) for name, found in self._found if (module := found()) is not None)

    def unseen(self, counts: SparsityCounts) -> list[str]:
        """The names of layers that have a gradient now but no counts, those in torch.compile included."""
        seen = {each.name for each in counts.layers}
        there = [(name, found()) for name, found in (*self._found, *self._behind)]
        trained = [name for name, module in there if isinstance(module, COUNTED) and _has_gradient(module)]
        return [name for name in trained if name not in seen]


def _has_gradient(module: Any) -> bool:
    return any(each.grad is not None for each in module.parameters(recurse=False))


class Counting:
    """The hooks of counted steps.

    They are made once, put on the layers when such a step begins, and removed at its end.
    """

    def __init__(self, counts: SparsityCounts, layers: Layers, drops: Drops) -> None:
        self._counts, self.layers, self._drops = counts, layers, drops
        self._by_name = {each.name: each for each in counts.layers}
        self._first = False
        """Whether this is the first counted step."""
        self._sums = StepCounts(0)
        """The sums of this step. Gradients that belong to an earlier step are not counted."""
        self._over = True
        self._forms: dict[tuple[Any, ...], LayerCall] = {}
        self._waiting: list[tuple[_Call, Any]] = []
        """Calls of this step with the gradients of their outputs, whose tensors are not counted yet."""
        self._bytes_kept = 0
        """The bytes of tensors that are kept for the end of the step."""
        self._changing: set[str] = set()
        """Names of layers whose tensors changed before the end of the step. Their tensors are counted at once from then
        on."""
        self._looked_at: list[tuple[StepCounts, LayerCounts, Callable[[], Values]]] = []
        """For each counted call the step, the layer, and a function that makes the sums."""
        self._bytes_of_counts = 0
        """The bytes of the counts that these functions hold."""
        self._projections = Projections(self._guarded(self._linear))
        self._hooks = {name: self._guarded(partial(self._forward, name)) for name, _ in layers}
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Called when a step begins: puts the hooks on the layers."""
        self._first = not self._counts.layers
        self._sums = StepCounts(0)
        self._over = False
        for name, module in self.layers:
            self._handles += self._hooked(name, module)

    def _hooked(self, name: str, module: Any) -> list[Any]:
        if isinstance(module, COUNTED):
            return [module.register_forward_hook(self._hooks[name], with_kwargs=True)]
        if isinstance(module, nn.MultiheadAttention):
            return self._projections.hooks(name, module)
        return [module.register_forward_hook(self._guarded(self._dropout))] if self._first else []

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """A hook that does nothing while torch.compile traces it, outside of a step, or without gradients.

        Errors are noted.
        """

        def hook(*args: Any) -> None:
            if torch.compiler.is_compiling() or self._over or not torch.is_grad_enabled():
                return
            self._attempt(function, *args)

        return hook

    def _dropout(self, module: Any, args: Any, output: Any) -> None:
        if module.training and output.requires_grad:
            lineage.mark_mask(output)

    def _forward(self, name: str, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        x, y = tensor_in(args[0] if args else next(iter(kwargs.values()), None)), tensor_in(output)
        if x is None or y is None or not y.requires_grad or not x.numel() or not y.numel():
            return
        layer = self._by_name.get(name) or self._add(empty_counts(name, module))
        if self._first:
            self._look_at_graph(layer, x, y)
        self._await_gradient(_Call(layer, module, (x.shape, y.shape), needs_of(module, x, layer.mask_known)), x, y)

    def _linear(self, name: str, weight: Any, x: Any, y: Any) -> None:
        """Called for each projection inside attention, which is a product but no module."""
        if not y.requires_grad or not x.numel():
            return
        outputs, inputs = weight.shape
        layer = self._by_name.get(name) or self._add(LayerCounts(name, "Linear", f"{inputs} -> {outputs}"))
        if self._first:
            self._look_at_graph(layer, x, y)
        needs = Needs(x.requires_grad, weight.requires_grad, layer.mask_known)
        self._await_gradient(_Call(layer, None, (x.shape, y.shape), needs), x, y)

    def _add(self, layer: LayerCounts) -> LayerCounts:
        self._by_name[layer.name] = layer
        self._counts.layers.append(layer)
        return layer

    def _look_at_graph(self, layer: LayerCounts, x: Any, y: Any) -> None:
        """Reads from the graph what comes before a layer. The first counted step is taken as typical of all calls."""
        self._counts.device = x.device.type
        if not layer.before:
            layer.mask_known = x.grad_fn is not None and lineage.mask_is_known(x)
            for path in lineage.paths(x):
                layer.before = layer.before or list(path.operators)
                if (previous := self._by_name.get(path.layer)) is not None and not previous.after:
                    previous.after = list(reversed(path.operators))
            layer.before = layer.before or lineage.chain(x)
        lineage.mark(y, layer.name)

    def _await_gradient(self, seen: _Call, x: Any, y: Any) -> None:
        is_batch, is_saved = x.grad_fn is None, seen.needs.weight
        if seen.layer.name not in self._changing and (is_saved or not is_batch):
            seen.x = keep(x, is_saved)
        if seen.x is None:
            seen.x = self._look(seen, x, is_input=True)
        sums = self._sums

        def hook(gradient: Any) -> None:
            if self._over or sums is not self._sums or torch.compiler.is_compiling():
                return
            self._attempt(self._saw_gradient, seen, gradient, is_batch)

        y.register_hook(hook)

    def _saw_gradient(self, seen: _Call, gradient: Any, at_once: bool) -> None:
        """Called with the gradient of a call's output. Small tensors are kept, but not a batch (`at_once`).

        The script may write into a batch as soon as backward no longer needs it.
        """
        dy: KeptTensor | Look | None = None
        if not at_once and seen.layer.name not in self._changing:
            dy = keep(gradient, False)
        size = sum(each.size for each in (seen.x, dy) if isinstance(each, KeptTensor))
        if dy is None or size > LARGEST or self._bytes_kept + size > MOST:
            seen.x = self._look_later(seen, seen.x, is_input=True)
            dy = self._look(seen, gradient, is_input=False)
        else:
            self._bytes_kept += size
        if isinstance(dy, KeptTensor) or not isinstance(seen.x, Look):
            self._waiting.append((seen, dy))
        else:
            self._seen(seen, seen.x, dy)

    def _seen(self, seen: _Call, x: Look, dy: Look | None) -> None:
        """Notes the counts of both tensors of a call. If the counts are large, sums are made of them at once."""
        products = partial(self._form(seen).products, x, dy, not seen.is_counted)
        size = sum(each.counts.raw.nbytes for each in (x, dy) if each is not None)
        if size > LARGEST or self._bytes_of_counts + size > MOST:
            values = products()
            self._looked_at.append((self._sums, seen.layer, lambda: values))
        else:
            self._bytes_of_counts += size
            self._looked_at.append((self._sums, seen.layer, products))
        seen.is_counted = True

    def _form(self, seen: _Call) -> LayerCall:
        key = seen.layer.name, seen.shapes, seen.needs
        if key not in self._forms:
            x, y = seen.shapes
            is_module = seen.of is not None
            self._forms[key] = call_of(seen.of, x, y, seen.needs) if is_module else LinearCall(x[-1], y[-1], seen.needs)
        return self._forms[key]

    def _look(self, seen: _Call, tensor: Any, is_input: bool) -> Any:
        form = self._form(seen)
        return (form.look_at_input if is_input else form.look_at_gradient)(tensor, self._first)

    def _look_later(self, seen: _Call, tensor: KeptTensor | Look, is_input: bool) -> Any:
        if not isinstance(tensor, KeptTensor):
            return tensor
        if not tensor.is_unchanged:
            self._changing.add(seen.layer.name)
            raise ValueError(f"a tensor of {seen.layer.name} was changed in place before the step was over")
        return self._look(seen, tensor.tensor, is_input)

    def remove(self) -> None:
        """Removes the hooks."""
        self._over = True
        while self._handles:
            self._handles.pop().remove()
        self._projections.remove()

    def end(self, step: int) -> bool:
        """Counts the tensors kept until the end of the step. Returns whether any layer was seen."""
        self.remove()
        waiting, self._waiting, self._bytes_kept = self._waiting, [], 0
        self._sums.step = step
        for seen, dy in waiting:
            self._attempt(self._look_at_both, seen, dy)
            seen.x = None  # a script that keeps the output keeps our hook on it, too
        looked_at = any(sums is self._sums for sums, *_ in self._looked_at[-1:])
        if looked_at:
            self._counts.steps.append(self._sums)
        return looked_at

    def _look_at_both(self, seen: _Call, dy: Any) -> None:
        self._seen(seen, self._look_later(seen, seen.x, is_input=True), self._look_later(seen, dy, is_input=False))

    def _attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            self._drops.add(HOOK, error)
            return None

    def add_up(self) -> None:
        """Adds the results of all steps since the last call to the layers' and steps' sums.

        Results are fetched from the device together, as fetching each one would take far longer.
        """
        looked_at, self._looked_at, self._bytes_of_counts = self._looked_at, [], 0
        found = [(sums, layer, self._attempt(products) or {}) for sums, layer, products in looked_at]
        totals = iter(numbers([value for _, _, values in found for value in values.values()]))
        for sums, layer, values in found:
            for name in values:
                value = next(totals)
                setattr(layer, name, (getattr(layer, name) or 0) + value)
                if name in _STEP:
                    setattr(sums, _STEP[name], getattr(sums, _STEP[name]) + value)
