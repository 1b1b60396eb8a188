"""Forward of fused models as a recorded list of operators: most of what mapping a small model takes is Python.

A recording is only as good as forward is the same each time. It is made twice and compared, and compared again with
forward itself at steps 1, 2, 4, 8, ...; a model whose forward changes between steps raises Untraceable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ddlprof.model.errors import UserError

Mapped = Callable[[dict[str, Tensor], dict[str, Tensor], tuple[Any, ...]], Any]
_MOST_GRAPHS = 32
"""Shapes of batches, and functions: with more, recording never ends."""
_TOLERANCE = 1e-3
"""Relative to the largest: rounding stays below, other operators do not."""


class Untraceable(UserError):
    """Forward is not the same each time."""


@dataclass
class _Recording:
    graph: Callable[..., Any] | None
    """None: this cannot be recorded."""
    uses: int = 0


class Traced:
    """Recordings of what is computed of all models, by function, mode and shapes of the batch."""

    def __init__(self, called: nn.Module) -> None:
        self._called = called
        self._recordings: dict[Hashable, _Recording] = {}

    @property
    def recordings(self) -> int:
        """Those that can be used."""
        return sum(each.graph is not None for each in self._recordings.values())

    def __call__(
        self, key: Hashable, mapped: Mapped, trained: dict[str, Tensor], rest: dict[str, Tensor], batch: Any
    ) -> Any:
        """What `mapped` gives, from its recording where there is one. Raises Untraceable."""
        leaves, spec = pytree.tree_flatten(batch)
        shapes = tuple((each.shape, each.dtype) if isinstance(each, Tensor) else each for each in leaves)
        whole = (key, self._called.training, torch.is_grad_enabled(), shapes, spec)
        found = self._recordings.get(whole)
        if found is None:
            if len(self._recordings) >= _MOST_GRAPHS:
                return mapped(trained, rest, batch)
            found = self._recordings[whole] = _Recording(self._record(mapped, trained, rest, batch))
        if found.graph is None:
            return mapped(trained, rest, batch)
        found.uses += 1
        if found.uses & (found.uses - 1) == 0 and not self._agrees(found.graph, mapped, trained, rest, batch):
            if found.uses > 1:
                raise Untraceable("forward of the model is not the same at each step")
            found.graph = None
            return mapped(trained, rest, batch)
        return found.graph(trained, rest, batch)

    def _record(self, mapped: Mapped, trained: Any, rest: Any, batch: Any) -> Callable[..., Any] | None:
        before = self._numbers()
        try:
            graphs = [self._graph(mapped, trained, rest, batch) for _ in range(2)]
        except Exception:  # what vmap can and recording cannot
            return None
        same = str(graphs[0].graph) == str(graphs[1].graph)
        if not same or self._numbers() != before:
            return None
        simplify(graphs[0])
        return graphs[0].forward  # a Module's call costs as much as an operator

    @staticmethod
    def _graph(mapped: Mapped, trained: Any, rest: Any, batch: Any) -> fx.GraphModule:
        with torch.random.fork_rng():
            return make_fx(mapped)(trained, {name: each.clone() for name, each in rest.items()}, batch)

    def _numbers(self) -> list[Any]:
        """What forward may keep in plain attributes, such as a count of its calls."""
        kinds = (bool, int, float, str)
        return [
            (name, value)
            for module in self._called.modules()
            for name, value in vars(module).items()
            if isinstance(value, kinds)
        ]

    @staticmethod
    def _agrees(graph: Any, mapped: Mapped, trained: Any, rest: Any, batch: Any) -> bool:
        found = []
        for function in (graph, mapped):
            with torch.random.fork_rng(), torch.no_grad() if not torch.is_grad_enabled() else torch.enable_grad():
                own = {name: each.clone() for name, each in rest.items()}
                found.append([*pytree.tree_leaves(function(trained, own, batch)), *own.values()])
        return len(found[0]) == len(found[1]) and all(itertools.starmap(_alike, zip(*found, strict=True)))


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach().double(), other.detach().double()
    finite = other[other.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest, equal_nan=True)


_VIEWS = {
    torch.ops.aten.expand.default,
    torch.ops.aten.permute.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.transpose.int,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
}


def simplify(recording: fx.GraphModule) -> None:
    """Takes out of the recording what changes nothing: unused operators, views as what they view, products with one."""
    graph = recording.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        source = node.args[0]
        if _transposes_back(node, source):
            node.replace_all_uses_with(source.args[0])
        elif (node.target in _VIEWS and _same_layout(node, source)) or _is_times_one(node):
            node.replace_all_uses_with(source)
    graph.eliminate_dead_code()
    recording.recompile()


def _same_layout(node: fx.Node, source: fx.Node) -> bool:
    one, other = node.meta.get("val"), source.meta.get("val")
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.shape == other.shape and one.stride() == other.stride()


def _transposes_back(node: fx.Node, source: fx.Node) -> bool:
    transpose = torch.ops.aten.transpose.int
    if node.target is not transpose or source.target is not transpose:
        return False
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return False
    pairs = [{int(each) % value.dim() for each in one.args[1:3]} for one in (node, source)]  # type: ignore[arg-type]
    return pairs[0] == pairs[1]


def _is_times_one(node: fx.Node) -> bool:
    """A copy, unless somebody writes into it."""
    if node.target is not torch.ops.aten.mul.Scalar or node.args[1] != 1:
        return False
    one, other = node.meta.get("val"), node.args[0].meta.get("val")  # type: ignore[union-attr]
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dtype != other.dtype:
        return False
    return not any(getattr(getattr(user.target, "_schema", None), "is_mutable", False) for user in node.users)
