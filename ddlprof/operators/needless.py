"""Gradients that a backward computes for parameters which no optimizer updates, from the autograd graph of one step.

`eval()` is often taken for freezing. Parameters of a backbone then still need gradients, and so does all that lies
between them and the loss. Whether nothing updates them is looked at again later, by their version and some values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddlprof.base.real_time import time
from ddlprof.operators.graph_flops import flops_of, source, tensors_of
from ddlprof.operators.parameters import parameters_of
from ddlprof.torch_private import engine

_MOST_NODES, _MOST_NS = 20_000, 50_000_000
_LOOKED_AT, _VALUES = 16, 8
"""How many parameters are looked at again, and how many values of each."""
_SURE_UPDATES = 16
"""After so many updates without a change, nothing updates them."""


class _Kept(NamedTuple):
    parameter: weakref.ref[Any]
    state: tuple[Any, ...]


class NeedlessGradients:
    """What one step computes for parameters that no optimizer updates."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.parameters = 0
        """The number of such parameters."""
        self._updated: set[int] = set()
        self._flops = self._all_flops = 0
        self._clock = clock
        self._kept: list[_Kept] = []
        self._changed = self._too_large = False
        self._updates = 0

    def update(self, optimizer: Any) -> None:
        """Called with each optimizer that updates in the first steps."""
        self._updated.update(map(id, parameters_of(optimizer)))

    def read(self, roots: Any) -> None:
        """Reads what `torch.autograd.backward(roots)` is about to run, in the step that is read."""
        nodes = _inputs_first([source(root) for root in tensors_of(roots)], self._clock)
        if nodes is None or not self._updated:
            self._too_large = True
            return
        needed: dict[Any, bool] = {}
        for node in nodes:
            edges = [(producer, output) for producer, output in node.next_functions if producer is not None]
            if not edges:
                needed[node] = self._is_needed(getattr(node, "variable", None))
                continue
            needed[node] = any(needed[producer] for producer, _ in edges)
            flops = flops_of(node)
            if flops is not None:
                operands = [producer for producer, n in edges if len(engine.output_shape(producer, n)) > 1] or [node]
                needless = sum(not needed[producer] for producer in operands) / len(operands)
                self._all_flops += flops.forward + flops.backward
                self._flops += round(flops.backward * needless)

    def _is_needed(self, leaf: Any) -> bool:
        import torch

        # One of another class may be a part of what the optimizer has, and to read it a collective (DTensor).
        if type(leaf) is not torch.nn.Parameter or id(leaf) in self._updated:
            return True
        self.parameters += 1
        if len(self._kept) < _LOOKED_AT:
            self._kept.append(_Kept(weakref.ref(leaf), _state(leaf)))
        return False

    def look(self, updates: int) -> None:
        """Called after ever rarer updates: looks whether the parameters have changed after all."""
        for kept in self._kept:
            parameter = kept.parameter()
            if parameter is None:
                return
            if _state(parameter) != kept.state:
                self._changed = True
                self._kept = []
                return
        self._updates = updates

    @property
    def share(self) -> float | None:
        """The share of the operations of forward and backward; None: not known, or something updates them."""
        if self._too_large or self._changed or not self._all_flops or self._updates < _SURE_UPDATES:
            return None
        return self._flops / self._all_flops


def _state(parameter: Any) -> tuple[Any, ...]:
    """What changes with a parameter."""
    with engine.no_torch_function():
        return (engine.version_of(parameter), parameter.data_ptr(), *engine.first_values(parameter, _VALUES))


def _inputs_first(roots: Iterable[Any], clock: Callable[[], int]) -> list[Any] | None:
    """The nodes of a graph, each after those that it passes gradients to; None if there are too many."""
    begin, order, seen = clock(), list[Any](), set[Any]()
    stack: list[tuple[Any, bool]] = [(node, False) for node in roots if node is not None]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _MOST_NODES or (not len(seen) % 1024 and clock() - begin > _MOST_NS):
            return None
        stack.append((node, True))
        stack.extend((producer, False) for producer, _ in node.next_functions if producer is not None)
    return order
