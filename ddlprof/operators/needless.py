"""Gradients that a backward computes and no optimizer uses, from the autograd graphs of the first steps.

`eval()` is often taken for freezing: parameters of a backbone then still need gradients, and so does all that lies
between them and the loss. Whether nothing updates them is looked at again later, by their version and some values.
Other gradients are set to zero before their optimizer uses them, such as those of a generator in its critic's loss.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddlprof.base.real_time import time
from ddlprof.operators.graph_flops import OperationFlops, flops_of, source, tensors_of
from ddlprof.operators.parameters import parameters_of
from ddlprof.torch_private import engine

_MOST_NODES, _MOST_NS = 20_000, 50_000_000
_LOOKED_AT, _VALUES = 16, 8
"""How many parameters are looked at again, and how many values of each."""
_SEEN_UPDATES = 4
"""After so many updates no more optimizers are told, and the graphs are evaluated."""
_SURE_UPDATES = 16
"""After so many updates without a change, nothing updates them."""
_NEEDED = -1
"""The leaf of an operation that passes gradients to what is no parameter."""


class _Kept(NamedTuple):
    parameter: weakref.ref[Any]
    state: tuple[Any, ...]


class _Operation(NamedTuple):
    """A node of a graph. Other nodes are told by their numbers in it."""

    leaf: int
    """The `id` of the parameter whose gradient is accumulated there, or `_NEEDED`; 0: it has producers."""
    producers: tuple[int, ...]
    """The nodes that it passes gradients to."""
    operands: tuple[int, ...]
    """Those of them for which each a part of the backward's operations is."""
    flops: OperationFlops | None


class _Gradient:
    """The gradient of a parameter, until its optimizer uses it."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = weakref.ref(parameter)
        self.passes: set[int] = set()
        """The backward passes that have computed it since the last update."""
        self.was_there = False
        """Whether it was there when another optimizer made an update."""

    @property
    def is_there(self) -> bool:
        """Whether it is there, and not zero as far as is looked at."""
        parameter = self.parameter()
        with engine.no_torch_function():
            gradient = None if parameter is None else parameter.grad
            if gradient is None or gradient.is_sparse:
                return gradient is not None
            return any(engine.first_values(gradient, _VALUES) or (True,))


class NeedlessGradients:
    """What the first steps compute for gradients that no optimizer uses."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.parameters: int | None = None
        """The number of parameters that get gradients and that no optimizer updates; None: not known."""
        self.dropped: int | None = None
        """The number of parameters with gradients that are set to zero before their optimizer uses them."""
        self._updated: set[int] = set()
        self._flops = self._all_flops = 0
        self._clock = clock
        self._spent_ns = 0
        self._passes: list[list[_Operation]] = []
        self._gradients: dict[int, _Gradient] = {}
        self._dropped: set[tuple[int, int]] = set()
        """Such gradients, by the number of the pass and the `id` of the parameter."""
        self._kept: list[_Kept] = []
        self._changed = self._too_large = False
        self._updates = 0
        self.taken = False
        """Whether the script takes the gradients of a backward before the next one, without an update."""

    def update(self, optimizer: Any) -> None:
        """Called with each optimizer that begins an update in the first steps."""
        own = set(map(id, parameters_of(optimizer)))
        self._updated |= own
        self._changed |= any(id(kept.parameter()) in own for kept in self._kept)  # it began later than others
        for key, gradient in self._gradients.items():
            if key in own:
                gradient.passes.clear()
                gradient.was_there = False
            elif gradient.passes:
                gradient.was_there = gradient.is_there

    def backward(self, roots: Any, read: bool) -> None:
        """Called when `torch.autograd.backward(roots)` is about to run in the first steps. `read`: whether its graph is
        one of those that are read."""
        made = [each for each in self._gradients.values() if each.passes][:_LOOKED_AT]
        self.taken |= bool(made) and not any(each.is_there for each in made)
        for key, gradient in self._gradients.items():
            if gradient.passes and gradient.was_there and not gradient.is_there:
                self._dropped.update((number, key) for number in gradient.passes)
                gradient.passes.clear()
                gradient.was_there = False
        if read and self._spent_ns < _MOST_NS:
            begin = self._clock()
            self._read(roots)
            self._spent_ns += self._clock() - begin

    def _read(self, roots: Any) -> None:
        begin = self._clock()
        nodes = _inputs_first([source(root) for root in tensors_of(roots)], self._clock)
        if nodes is None:
            self._too_large = True
            return
        numbers = {node: number for number, node in enumerate(nodes)}
        operations: list[_Operation] = []
        self._passes.append(operations)
        for node in nodes:
            if len(operations) % 1024 == 1023 and self._clock() - begin > _MOST_NS:
                self._too_large = True
                return
            edges = [(producer, output) for producer, output in node.next_functions if producer is not None]
            flops = flops_of(node) if edges else None
            matrices = [producer for producer, n in edges if len(engine.output_shape(producer, n)) > 1] if flops else []
            operations.append(
                _Operation(
                    0 if edges else self._leaf(getattr(node, "variable", None)),
                    tuple(numbers[producer] for producer, _ in edges),
                    tuple(numbers[producer] for producer in matrices),
                    flops,
                )
            )

    def _leaf(self, leaf: Any) -> int:
        import torch

        # One of another class may be a part of what the optimizer has, and to read it a collective (DTensor).
        if type(leaf) is not torch.nn.Parameter:
            return _NEEDED
        gradient = self._gradients.get(id(leaf))
        if gradient is None or gradient.parameter() is not leaf:
            gradient = self._gradients[id(leaf)] = _Gradient(leaf)
        gradient.passes.add(len(self._passes) - 1)
        return id(leaf)

    def look(self, updates: int) -> None:
        """Called after ever rarer updates: looks whether the parameters have changed after all."""
        if updates >= _SEEN_UPDATES and self._gradients:
            self._evaluate()
        for kept in self._kept:
            parameter = kept.parameter()
            if parameter is None:
                return
            if _state(parameter) != kept.state:
                self._changed = True
                self._kept = []
                return
        self._updates = updates

    def _evaluate(self) -> None:
        """Adds up what was needless, and lets the graphs go."""
        never = {key: each for key, each in self._gradients.items() if key not in self._updated}
        for number, operations in enumerate(self._passes):
            needed: list[bool] = []
            for each in operations:
                leaf = each.leaf == _NEEDED or (each.leaf not in never and (number, each.leaf) not in self._dropped)
                needed.append(any(needed[n] for n in each.producers) if not each.leaf else leaf)
                if each.flops is not None:
                    operands = [needed[n] for n in each.operands] or [needed[-1]]
                    self._all_flops += each.flops.forward + each.flops.backward
                    self._flops += round(each.flops.backward * (1 - sum(operands) / len(operands)))
        if self._updated:
            self.parameters, self.dropped = len(never), len({key for _, key in self._dropped if key not in never})
        alive = [parameter for each in never.values() if (parameter := each.parameter()) is not None]
        self._kept = [_Kept(weakref.ref(each), _state(each)) for each in alive[:_LOOKED_AT]]
        self._passes, self._gradients = [], {}

    @property
    def share(self) -> float | None:
        """The share of the operations of forward and backward; None: not known, or something updates them."""
        sure = self.parameters is not None and self._updates >= _SURE_UPDATES
        if self._too_large or self._changed or not self._all_flops or not sure:
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
