"""Counts the floating point operations of a training by reading its autograd graph; nothing is executed or patched.

Right before a backward the graph holds every operation of forward that has a gradient, and between the operations the
shapes of what flows. Matrix products, convolutions, attention and recurrent kernels follow by formula, as in
`torch.utils.flop_counter`; everything else is taken for free, as there. Saved tensors are not unpacked: that runs
hooks of the script's (offloading) or computes a checkpointed segment again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from ddlprof.base.real_time import time
from ddlprof.operators import formulas
from ddlprof.torch_private import engine

Shape = tuple[int, ...]

_MOST_NODES = 200_000
_MOST_NS = 200_000_000
"""Nanoseconds. A graph that takes longer is not counted, as the training waits for it."""
_ENOUGH_NS = 50_000_000
"""Nanoseconds, after which further micro-batches are assumed to be like those counted."""
_MOST_FAILED = 0.1
_LEAST_SEEN = 0.8
"""The least share of the model's weights that the graph must contain; with less, the count is discarded."""
_CHECKPOINT = "torch.utils.checkpoint"
_FREE = ("torch.distributed.", "torch.nn.")
"""Modules whose autograd functions only move data."""
_MOST_CASTS = 4
"""Operations between a weight and its use."""


class Work(NamedTuple):
    """Floating point operations of one operation, a multiply-add counted as two."""

    forward: int
    backward: int
    frozen: int = 0
    """Elements of its weight, if that needs no gradient."""


class _Node:
    """One operation of the graph: shapes by the position of its differentiable arguments."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._edges = node.next_functions

    def __len__(self) -> int:
        return len(self._edges)

    @property
    def output(self) -> Shape:
        """Shape of the first output."""
        return tuple(engine.output_shape(self._node))

    def argument(self, index: int) -> Shape | None:
        """Shape of an argument; None if it needs no gradient."""
        producer, output = self._edges[index]
        return None if producer is None else tuple(engine.output_shape(producer, output))

    def attribute(self, name: str) -> Any:
        """An argument that is no tensor."""
        return engine.saved_argument(self._node, name)

    def saved(self, name: str) -> Shape | None:
        """Shape of a saved tensor, where it can be had without a hook of the script's."""
        slot = engine.saved_tensor(self._node, name)
        if not hasattr(slot, "unpack_hook") or slot.unpack_hook is not None:  # torch cannot tell, or there is one
            return None
        return tuple(slot.data.shape)

    def computed_again(self, names: tuple[str, ...]) -> bool:
        """Whether it is part of a segment under (not reentrant) activation checkpointing."""
        slots = (engine.saved_tensor(self._node, name) for name in names)
        hooks = (getattr(slot, "unpack_hook", None) for slot in slots)
        return any(getattr(hook, "__module__", None) == _CHECKPOINT for hook in hooks)


def _known(*values: int | None) -> int:
    """The first argument that is not None. Raises LookupError if all are."""
    for value in values:
        if value is not None:
            return value
    raise LookupError("no argument tells this size")


def _at(shape: Shape | None, index: int) -> int | None:
    return None if shape is None else shape[index]


def _product(operands: formulas.Product) -> Callable[[_Node], Work]:
    def work(node: _Node) -> Work:
        a, b, out = node.argument(operands.left), node.argument(operands.right), node.output
        inner = _known(_at(a, -1), _at(b, -1 if operands.transposed else -2))
        forward = formulas.product_flops(*out, inner)
        return Work(forward, forward * ((a is not None) + (b is not None)), inner * out[-1] if b is None else 0)

    return work


def _convolution(node: _Node) -> Work:
    x, weight = node.argument(0), node.argument(1)
    gradients = (x is not None) + (weight is not None)
    transposed = bool(node.attribute("transposed"))
    kernel = weight or node.saved("weight")
    points = (x or node.saved("input")) if transposed else node.output
    if kernel is None or points is None:
        raise LookupError("the saved tensors are behind hooks")
    forward = formulas.convolution(points, kernel, points, 1, transposed).flops  # as many in groups or without
    return Work(forward, forward * gradients, prod(kernel) if weight is None else 0)


def _attention(node: _Node) -> Work:
    query, key, value, out = node.argument(0), node.argument(1), node.argument(2), node.output
    width, length = _known(_at(query, -1), _at(key, -1)), _known(_at(key, -2), _at(value, -2))
    return Work(*formulas.attention_flops(prod(out[:-1]), length, width, out[-1]))


def _recurrent(node: _Node) -> Work:
    arguments = [node.argument(index) for index in range(1, len(node) - 2)]  # without the input and initial states
    matrices = [prod(shape) for shape in arguments if shape is not None and len(shape) == 2]
    if not matrices:
        raise LookupError("no weight needs a gradient")
    return Work(*formulas.recurrent_flops(prod(node.output[:-1]), matrices, node.argument(0) is not None))


class _Formula(NamedTuple):
    work: Callable[[_Node], Work]
    saves: tuple[str, ...]


_FORMULAS = {
    **{name: _Formula(_product(operands), operands.saved) for name, operands in formulas.PRODUCTS.items()},
    **dict.fromkeys(formulas.CONVOLUTIONS, _Formula(_convolution, ("input", "weight"))),
    **dict.fromkeys(formulas.RECURRENT, _Formula(_recurrent, ("input",))),
    **dict.fromkeys(formulas.ATTENTION, _Formula(_attention, ("query", "key", "value"))),
}


def operation(node: Any) -> str:
    """`Addmm` of the node of that operator's backward; all nodes of one operator have a class of their own."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


class GraphFlops:
    """Totals over the backwards that were counted."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.forward = self.backward = 0
        self.microbatches = 0
        self.of_weights: Counter[int] = Counter()
        """The forward operations by the id of the parameter that they are a product or convolution with."""
        self.unknown = 0
        """Operations whose inside is not visible or whose sizes are not known: the totals are lower bounds if > 0."""
        self._clock = clock
        self._spent_ns = 0
        self._counted = self._failed = self._opaque = self._frozen = 0
        self._hidden = False
        """Something that cannot be counted has a weight of the model in it, or the graph was too large."""
        self._trained: dict[int, int] = {}  # id of a parameter in the graph -> its elements
        self._kept: set[int | None] = set()  # numbers of operations whose forward was counted and may be met again

    @property
    def enough(self) -> bool:
        """Whether its time is used up."""
        return self._spent_ns >= _ENOUGH_NS

    def count(self, roots: Any, nested: bool = False, kept: bool = False) -> None:
        """Counts what `torch.autograd.backward(roots)` is about to go through.

        `nested`: called by a backward, as reentrant checkpointing does for what it has just computed again.
        `kept`: the graph stays, and another backward may go through parts of it again.
        """
        begin = self._clock()
        self.microbatches += not nested
        if not self._walk([source(root) for root in tensors_of(roots)], nested, begin, kept):
            self._hidden = True
        self._spent_ns += self._clock() - begin

    def of_microbatch(self, trained: int, frozen: int) -> tuple[float, float] | None:
        """Forward and backward operations of a mean micro-batch; None where too much of them was not visible.

        The arguments are elements of the model: those of trained parameters, and of the matrices among the others.
        """
        lost = self._opaque and sum(self._trained.values()) < _LEAST_SEEN * trained
        outside = self._frozen < _LEAST_SEEN * frozen * self.microbatches  # of what has no gradient, nothing is seen
        failed = self._failed > _MOST_FAILED * self._counted
        if not self.forward or self._hidden or lost or outside or failed:
            return None
        return self.forward / self.microbatches, self.backward / self.microbatches

    def of_weights_in_microbatch(self) -> dict[int, float]:
        """The forward operations of a mean micro-batch, by the id of the parameter that they are with."""
        return {key: flops / max(self.microbatches, 1) for key, flops in self.of_weights.items()}

    def _walk(self, nodes: list[Any], nested: bool, begin: int, kept: bool) -> bool:
        seen: set[Any] = set()
        formulas: dict[type, _Formula | None] = {}
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if len(seen) > _MOST_NODES or (not len(seen) % 1024 and self._clock() - begin > _MOST_NS):
                return False
            kind = type(node)
            if kind not in formulas:
                formulas[kind] = _FORMULAS.get(operation(node))
            formula = formulas[kind]
            edges = node.next_functions
            nodes.extend(producer for producer, _ in edges)
            if formula is not None:
                self._add(formula, node, nested, kept)
            elif not edges:
                self._reach(node)
            elif is_opaque(node):
                self._opaque += 1
                self.unknown += 1
                self._hidden |= any(_is_weight(producer) for producer, _ in edges)
        return True

    def _add(self, formula: _Formula, node: Any, nested: bool, kept: bool) -> None:
        try:
            operands = _Node(node)
            work = formula.work(operands)
            again = nested or operands.computed_again(formula.saves)
        except Exception:  # sizes that are no plain numbers, or an operator whose form is another in this torch
            self._failed += 1
            self.unknown += 1
            return
        self._counted += 1
        number = engine.sequence_number(node) if kept or self._kept else None
        if number not in self._kept:
            self.forward += work.forward
            weights = [weight for producer, _ in node.next_functions if (weight := _weight(producer)) is not None]
            for weight in weights:
                self.of_weights[id(weight)] += work.forward // len(weights)
        if kept:
            self._kept.add(number)
        self.backward += work.backward + (work.forward if again else 0)
        self._frozen += work.frozen

    def _reach(self, node: Any) -> None:
        """A leaf of the graph: the parameter whose gradient is added up there."""
        variable = getattr(node, "variable", None)
        if variable is not None:
            self._trained[id(variable)] = prod(engine.output_shape(node))


def tensors_of(roots: Any) -> Iterator[Any]:
    """The tensors, only if they can be read twice: `backward` takes iterators, too."""
    if isinstance(roots, (list, tuple)) and not hasattr(roots, "node"):
        yield from roots
    else:
        yield roots


def source(root: Any) -> Any:
    """The node that made a tensor, or that an edge of the graph names."""
    import torch

    if not isinstance(root, torch.Tensor):
        return getattr(root, "node", None)
    with engine.no_torch_function(torch):  # a subclass or mode of the script's would be asked
        return root.grad_fn


def is_opaque(node: Any) -> bool:
    """An autograd function of somebody's own, in Python or C++: what it computes is not in the graph."""
    function = engine.forward_class(node)
    if function is None:
        return type(node).__name__ == "CppFunction" and "CppNode" in node.name()
    return not function.__module__.startswith(_FREE)


def _is_weight(producer: Any) -> bool:
    """Whether it hands on a matrix among the model's parameters, perhaps cast or transposed."""
    return _weight(producer) is not None


def _weight(producer: Any) -> Any:
    """That matrix; None for anything else."""
    import torch

    for _ in range(_MOST_CASTS):
        sources: Any = getattr(producer, "next_functions", ())
        if len(sources) != 1 or operation(producer) in _FORMULAS:
            break
        producer = sources[0][0]
    variable = getattr(producer, "variable", None)
    is_matrix = isinstance(variable, torch.nn.Parameter) and len(engine.output_shape(producer)) >= 2
    return variable if is_matrix else None
