"""Counts the floating point operations of a training from its autograd graph. Nothing is executed or patched.

Right before a backward the graph contains every operation of forward that has a gradient, and the shapes of the tensors
between operations. FLOPs of matrix products, convolutions, attention and recurrent kernels follow by formula, as in
`torch.utils.flop_counter`; as there, all other operations count as free. Saved tensors are not unpacked, as that would
run hooks of the script (offloading) or recompute a checkpointed segment.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

from ddlprof.base.real_time import time
from ddlprof.model.amounts import SPARSE_NONZERO
from ddlprof.operators import formulas
from ddlprof.torch_private import engine

Shape = tuple[int, ...]

_MOST_NODES = 200_000
_MOST_NS = 200_000_000
"""The time in ns after which counting a graph is given up, as the training waits for it."""
_ENOUGH_NS = 50_000_000
"""The time in ns after which further micro-batches are assumed to be like those counted."""
_MOST_FAILED = 0.1
_LEAST_SEEN = 0.8
"""The smallest share of the model's weights that the graph must contain. With less, the count is discarded."""
_CHECKPOINT = "torch.utils.checkpoint"
_FREE = ("torch.distributed.", "torch.nn.")
"""Packages whose autograd functions only move data."""
_MOST_CASTS = 4
"""The most operations, such as casts, between a weight and its use."""
_FEWEST_NUMBERS, _MOST_NUMBERS = 10_000, 2**16
"""The size of a matrix in which zeros are counted, and how many of its numbers are looked at."""
_ZEROS_NS, _ZEROS_LOOKED_AT = 20_000_000, 4
"""The time in ns after which no more zeros are counted, and how many matrices of zeros are looked at again."""


class OperationFlops(NamedTuple):
    """FLOPs of one operation; a multiply-add counts as two."""

    forward: int
    backward: int
    frozen: int = 0
    """The elements of its weight if that needs no gradient, else 0."""


class _Node:
    """One operation of the graph, with shapes by the position of its differentiable arguments."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._edges = node.next_functions

    def __len__(self) -> int:
        return len(self._edges)

    @property
    def output(self) -> Shape:
        """The shape of the first output."""
        return tuple(engine.output_shape(self._node))

    def argument(self, index: int) -> Shape | None:
        """The shape of an argument; None if it needs no gradient."""
        producer, output = self._edges[index]
        return None if producer is None else tuple(engine.output_shape(producer, output))

    def attribute(self, name: str) -> Any:
        """The value of an argument that is no tensor."""
        return engine.saved_argument(self._node, name)

    def saved(self, name: str) -> Shape | None:
        """The shape of a saved tensor, if it can be read without running a hook of the script."""
        slot = engine.saved_tensor(self._node, name)
        if not hasattr(slot, "unpack_hook") or slot.unpack_hook is not None:  # unknown to torch, or there is a hook
            return None
        return tuple(slot.data.shape)

    def computed_again(self, names: tuple[str, ...]) -> bool:
        """Whether it is in a segment under non-reentrant activation checkpointing."""
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


def _product(operands: formulas.Product) -> Callable[[_Node], OperationFlops]:
    def work(node: _Node) -> OperationFlops:
        a, b, out = node.argument(operands.left), node.argument(operands.right), node.output
        inner = _known(_at(a, -1), _at(b, -1 if operands.transposed else -2))
        forward = formulas.product_flops(*out, inner)
        return OperationFlops(
            forward, forward * ((a is not None) + (b is not None)), inner * out[-1] if b is None else 0
        )

    return work


def _convolution(node: _Node) -> OperationFlops:
    x, weight = node.argument(0), node.argument(1)
    gradients = (x is not None) + (weight is not None)
    transposed = bool(node.attribute("transposed"))
    kernel = weight or node.saved("weight")
    points = (x or node.saved("input")) if transposed else node.output
    if kernel is None or points is None:
        raise LookupError("the saved tensors are behind hooks")
    forward = formulas.convolution(points, kernel, points, 1, transposed).flops  # equal with and without groups
    return OperationFlops(forward, forward * gradients, prod(kernel) if weight is None else 0)


def _attention(node: _Node) -> OperationFlops:
    query, key, value, out = node.argument(0), node.argument(1), node.argument(2), node.output
    width, length = _known(_at(query, -1), _at(key, -1)), _known(_at(key, -2), _at(value, -2))
    return OperationFlops(*formulas.attention_flops(prod(out[:-1]), length, width, out[-1]))


def _recurrent(node: _Node) -> OperationFlops:
    arguments = [node.argument(index) for index in range(1, len(node) - 2)]  # without the input and initial states
    matrices = [prod(shape) for shape in arguments if shape is not None and len(shape) == 2]
    if not matrices:
        raise LookupError("no weight needs a gradient")
    return OperationFlops(*formulas.recurrent_flops(prod(node.output[:-1]), matrices, node.argument(0) is not None))


class _Formula(NamedTuple):
    work: Callable[[_Node], OperationFlops]
    saves: tuple[str, ...]
    operands: formulas.Product | None = None


_FORMULAS = {
    **{name: _Formula(_product(operands), operands.saved, operands) for name, operands in formulas.PRODUCTS.items()},
    **dict.fromkeys(formulas.CONVOLUTIONS, _Formula(_convolution, ("input", "weight"))),
    **dict.fromkeys(formulas.RECURRENT, _Formula(_recurrent, ("input",))),
    **dict.fromkeys(formulas.ATTENTION, _Formula(_attention, ("query", "key", "value"))),
}


def flops_of(node: Any) -> OperationFlops | None:
    """The FLOPs of an operation of the graph; None if it counts as free, or they are not known."""
    formula = _FORMULAS.get(operation(node))
    try:
        return None if formula is None else formula.work(_Node(node))
    except Exception:  # unusual sizes, or an operator that differs in this version of torch
        return None


def operation(node: Any) -> str:
    """The name of an operator by the class of its backward node, such as `Addmm`.

    Each operator has a class of its own.
    """
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


class GraphFlops:
    """Totals over the backward passes that were counted."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.forward = self.backward = 0
        self.again = 0
        """The part of the backward that does a forward again, under activation checkpointing."""
        self.repeated = 0
        """The part of the backward that goes through operations again, for another loss of the same graph."""
        self.microbatches = 0
        self.nodes = 0
        """The nodes of all graphs, each once for every backward pass through it."""
        self.of_weights: Counter[int] = Counter()
        """FLOPs of forward by the `id` of the parameter, for products and convolutions with it."""
        self.sparse = 0
        """FLOPs of products with a matrix that needs no gradient and is zero but for `SPARSE_NONZERO` at most."""
        self.nonzero = 0.0
        """The largest share of the numbers of such a matrix that are not zero."""
        self.unknown = 0
        """Operations whose contents or sizes are not known. If there are any, the totals are lower bounds."""
        self._zeros: list[weakref.ref[Any]] = []  # such matrices, which may fill later
        self._zeros_ns = 0
        self._clock = clock
        self._spent_ns = 0
        self._counted = self._failed = self._opaque = self._frozen = 0
        self._hidden = False
        """Whether something that cannot be counted contains a weight of the model, or the graph was too large."""
        self._trained: dict[int, int] = {}  # by the id of a parameter in the graph: its elements
        self._kept: set[int | None] = set()  # operations whose forward was counted and that may occur again
        self._earlier: frozenset[int | None] = frozenset()  # those of earlier backward passes
        self._created = False

    @property
    def enough(self) -> bool:
        """Whether the time for counting is used up."""
        return self._spent_ns >= _ENOUGH_NS

    def count(self, roots: Any, nested: bool = False, kept: bool = False, created: bool = False) -> None:
        """Counts what `torch.autograd.backward(roots)` is about to run.

        `nested`: the call comes from within a backward, as with reentrant checkpointing for what it has just
        recomputed. `kept`: the graph is retained, so another backward may run parts of it again. `created`: a graph of
        the gradients is made, so another backward has to.
        """
        self._created |= created
        self._earlier = frozenset(self._kept)
        begin = self._clock()
        self.microbatches += not nested
        if not self._walk([source(root) for root in tensors_of(roots)], nested, begin, kept):
            self._hidden = True
        self._spent_ns += self._clock() - begin

    def of_microbatch(self, trained: int, frozen: int) -> tuple[float, float] | None:
        """Mean FLOPs of forward and backward of a micro-batch; None if too much was not visible.

        `trained`: elements of trained parameters of the model. `frozen`: elements of its frozen matrices.
        """
        lost = self._opaque and sum(self._trained.values()) < _LEAST_SEEN * trained
        outside = self._frozen < _LEAST_SEEN * frozen * self.microbatches  # has no gradient: not in the graph
        failed = self._failed > _MOST_FAILED * self._counted
        if not self.forward or self._hidden or lost or outside or failed:
            return None
        return self.forward / self.microbatches, self.backward / self.microbatches

    def recomputed_in_microbatch(self) -> float:
        """Mean FLOPs of a backward that do a forward again."""
        return self.again / max(self.microbatches, 1)

    @property
    def repeated_share(self) -> float | None:
        """The part of the backward that goes through the same operations for one loss after the other; None: not
        known."""
        return None if self._created or self._hidden or not self.backward else self.repeated / self.backward

    @property
    def sparse_share(self) -> float | None:
        """The part of all FLOPs that is of such products; None: not known."""
        return None if self._hidden or not self.forward else self.sparse / (self.forward + self.backward)

    def of_weights_in_microbatch(self) -> dict[int, float]:
        """Mean FLOPs of forward of a micro-batch by the `id` of the parameter."""
        return {key: flops / max(self.microbatches, 1) for key, flops in self.of_weights.items()}

    def _walk(self, nodes: list[Any], nested: bool, begin: int, kept: bool) -> bool:
        seen: set[Any] = set()
        formulas: dict[type, _Formula | None] = {}
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            self.nodes += 1
            if len(seen) > _MOST_NODES or (not len(seen) % 1024 and self._clock() - begin - self._zeros_ns > _MOST_NS):
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
        except Exception:  # unusual sizes, or an operator that differs in this version of torch
            self._failed += 1
            self.unknown += 1
            return
        self._counted += 1
        if formula.operands is not None and self._zeros_ns < _ZEROS_NS:
            with suppress(Exception):  # the operations are known without it
                self._count_zeros(node, formula.operands, work)
        number = engine.sequence_number(node) if kept or self._kept else None
        self.repeated += work.backward if number in self._earlier and number is not None and not nested else 0
        if number not in self._kept:
            self.forward += work.forward
            weights = [weight for producer, _ in node.next_functions if (weight := _weight(producer)) is not None]
            for weight in weights:
                self.of_weights[id(weight)] += work.forward // len(weights)
        if kept:
            self._kept.add(number)
        recomputed = work.forward if again else 0
        self.backward += work.backward + recomputed
        self.again += recomputed
        self._frozen += work.frozen

    def _count_zeros(self, node: Any, operands: formulas.Product, work: OperationFlops) -> None:
        begin = self._clock()
        for position, name in zip((operands.left, operands.right), operands.saved, strict=True):
            if node.next_functions[position][0] is None:
                slot = engine.saved_tensor(node, name)
                known = getattr(slot, "unpack_hook", self) is None and slot.data is not None
                share = engine.nonzero_share(slot.data, _FEWEST_NUMBERS, _MOST_NUMBERS) if known else None
                if share is not None and share <= SPARSE_NONZERO:
                    self.sparse += work.forward + work.backward
                    self.nonzero = max(self.nonzero, share)
                    self._zeros.append(weakref.ref(slot.data))
        self._zeros_ns += self._clock() - begin

    def look_at_zeros(self) -> None:
        """Looks again, after a while, whether what was almost only zeros is there and still is: a memory bank fills."""
        for matrix in (ref() for ref in self._zeros[:_ZEROS_LOOKED_AT]):
            now = None if matrix is None else engine.nonzero_share(matrix, _FEWEST_NUMBERS, _MOST_NUMBERS)
            if now is None or now > SPARSE_NONZERO:
                self.sparse, self._zeros = 0, []
                return

    def _reach(self, node: Any) -> None:
        """Notes a leaf of the graph: the parameter whose gradient is accumulated there."""
        variable = getattr(node, "variable", None)
        if variable is not None:
            self._trained[id(variable)] = prod(engine.output_shape(node))


def tensors_of(roots: Any) -> Iterator[Any]:
    """The elements of a list or tuple; anything else is yielded as it is, as iterators can be read only once."""
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
    """Whether a node is that of a custom autograd function, in Python or C++, whose computation is not in the graph."""
    function = engine.forward_class(node)
    if function is None:
        return type(node).__name__ == "CppFunction" and "CppNode" in node.name()
    return not function.__module__.startswith(_FREE)


def _is_weight(producer: Any) -> bool:
    """Whether a node passes on a matrix of the model's parameters, maybe cast or transposed."""
    return _weight(producer) is not None


def _weight(producer: Any) -> Any:
    """The node's matrix of the model's parameters; None for other nodes."""
    import torch

    for _ in range(_MOST_CASTS):
        sources: Any = getattr(producer, "next_functions", ())
        if len(sources) != 1 or operation(producer) in _FORMULAS:
            break
        producer = sources[0][0]
    variable = getattr(producer, "variable", None)
    is_matrix = isinstance(variable, torch.nn.Parameter) and len(engine.output_shape(producer)) >= 2
    return variable if is_matrix else None
