"""Reads the autograd graph into plain tuples, right before a backward. Nothing is executed, unpacked or kept alive.

`graph_operators` later computes the cost of the operations from these tuples, when the training thread has gone on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddlprof.base.real_time import time
from ddlprof.operators.graph_flops import is_opaque, operation, source, tensors_of
from ddlprof.operators.parameters import own_buffers, own_parameters
from ddlprof.torch_private import engine

Shape = tuple[int, ...]

_MOST_NODES = 50_000
_MOST_NS = 250_000_000
"""The processor time in ns after which a graph is given up as too large, because the training waits for it."""
_ENOUGH_NS = 60_000_000
"""The time in ns after which further micro-batches are assumed to be like those read."""
_EVERY = 256
"""The number of nodes between two checks of the clock."""
_CHECKPOINT = "torch.utils.checkpoint"
_SOONEST = 1 << 62
_NO_ARGUMENTS: dict[str, Any] = {}
_ARGUMENTS = frozenset({"normalized_shape", "group", "groups", "transposed", "kernel_size", "dim", "hidden_size",
    "bidirectional", "batch_first", "training", "is_causal", "sparse"})  # fmt: skip
"""Arguments, other than sizes, from which sizes or FLOPs follow."""


class Output(NamedTuple):
    """One output of an operation."""

    shape: Shape
    dtype: str


class SavedTensor(NamedTuple):
    """A tensor that an operation keeps for its backward."""

    name: str
    shape: Shape
    dtype: str
    storage: int | None
    """The address of its memory; None if the tensor's class does not tell."""
    storage_bytes: int


class Recomputation(NamedTuple):
    """A part of a segment that checkpointing recomputes."""

    segment: int
    keeps_result: bool
    """Whether it keeps its result for backward, not only its arguments."""


class Leaf(NamedTuple):
    """A tensor whose gradient is accumulated."""

    is_parameter: bool
    has_gradient: bool
    """Whether it already has a gradient, to which the new one is added."""
    storage: int | None


class Operation(NamedTuple):
    """One operation of the graph."""

    name: str
    """The name of the operator, such as `Addmm`."""
    outputs: tuple[Output, ...]
    sources: tuple[tuple[int, int], ...]
    """For each differentiable argument the index of the operation that made it, and the number of its output; (-1, 0):
    no gradient."""
    arguments: dict[str, Any]
    saved: tuple[SavedTensor, ...]
    hidden: bool
    """Whether saved tensors are behind hooks, or torch does not show them."""
    again: Recomputation | None
    """Set if non-reentrant checkpointing recomputes it in backward."""
    sequence: int = 0
    """The order of recording. Backward runs the latest first, and leaves as soon as they are ready."""
    leaf: Leaf | None = None
    opaque: str | None = None
    """The name of a custom autograd function; None for torch's operations."""
    repeated: bool = False
    """Whether another backward of the step goes through it, too, and its forward was counted there."""


class Graph(NamedTuple):
    """The operations that one backward is about to run."""

    nodes: list[Operation]
    nested: bool
    """Whether reentrant checkpointing has recomputed it."""


class _Plan(NamedTuple):
    """What is read from the nodes of one class."""

    name: str
    slots: tuple[str, ...]
    arguments: tuple[str, ...]
    opaque: bool


class GraphReader:
    """The graphs of one step, as far as there was time to read them."""

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self.graphs: list[Graph] = []
        self.given_up = False
        """Whether a graph was too large. Nothing is known then."""
        self.microbatches = 0
        self._clock = clock
        self._spent_ns = 0
        self._nodes = 0
        self._plans: dict[type, _Plan] = {}
        self._dtypes: dict[Any, str] = {}
        self._known_outputs: dict[Any, tuple[Output, ...]] = {}
        self._kept: set[int | None] = set()

    @property
    def enough(self) -> bool:
        """Whether the time for reading is used up."""
        return self.given_up or self._spent_ns >= _ENOUGH_NS

    def read(self, roots: Any, nested: bool = False, kept: bool = False) -> None:
        """Reads what `torch.autograd.backward(roots)` is about to run.

        For `nested` and `kept` see `GraphFlops.count`.
        """
        begin = self._clock()
        self.microbatches += not nested
        nodes = self._walk([node for root in tensors_of(roots) if (node := source(root)) is not None], begin, kept)
        if nodes is None:
            self.given_up = True
            self.graphs.clear()
        else:
            self.graphs.append(Graph(nodes, nested))
        self._spent_ns += self._clock() - begin

    def _walk(self, found: list[Any], begin: int, kept: bool) -> list[Operation] | None:
        """The operations, those nearest to the roots first; None if there are too many."""
        import torch

        numbers: dict[Any, int] = {}
        for node in found:
            numbers.setdefault(node, len(numbers))
        waiting = list(numbers)
        seen: list[Operation] = []
        with engine.no_torch_function(torch):  # do not run tensor subclasses' __torch_function__
            for node in waiting:
                self._nodes += 1
                late = not len(seen) % _EVERY and self._clock() - begin > _MOST_NS
                if late or self._nodes > _MOST_NODES:
                    return None
                edges = []
                for producer, output in node.next_functions:
                    if producer is None:
                        edges.append((-1, 0))
                        continue
                    number = numbers.get(producer)
                    if number is None:
                        number = numbers[producer] = len(numbers)
                        waiting.append(producer)
                    edges.append((number, output))
                seen.append(self._read(node, tuple(edges), kept, torch))
        return seen

    def _read(self, node: Any, edges: tuple[tuple[int, int], ...], kept: bool, torch: Any) -> Operation:
        plan = self._plans.get(type(node))
        if plan is None:
            plan = self._plans[type(node)] = _plan(node)
        outputs = self._outputs(node)
        if not edges and (variable := getattr(node, "variable", None)) is not None:
            return Operation(
                plan.name, outputs, edges, _NO_ARGUMENTS, (), False, None, _SOONEST, _leaf(variable, torch)
            )
        arguments = {name: _argument(node, name) for name in plan.arguments} if plan.arguments else _NO_ARGUMENTS
        saved, hidden, again = self._saved(node, plan.slots)
        number = engine.sequence_number(node)
        repeated = number in self._kept
        if kept:
            self._kept.add(number)
        opaque = plan.name if plan.opaque else None
        return Operation(
            plan.name, outputs, edges, arguments, saved, hidden, again, number or 0, None, opaque, repeated
        )

    def _outputs(self, node: Any) -> tuple[Output, ...]:
        try:
            kinds = engine.output_kinds(node)
            known = self._known_outputs.get(kinds)
            if known is None:  # one object for equal ones: many small objects would start the garbage collector
                known = tuple(Output(shape, self._dtype(dtype)) for shape, dtype in kinds)
                self._known_outputs[kinds] = known
            return known
        except Exception:  # nested tensors have no shape
            return ()

    def _dtype(self, dtype: Any) -> str:
        name = self._dtypes.get(dtype)
        if name is None:
            name = self._dtypes[dtype] = str(dtype).removeprefix("torch.")
        return name

    def _saved(self, node: Any, names: tuple[str, ...]) -> tuple[tuple[SavedTensor, ...], bool, Recomputation | None]:
        """The saved tensors, whether some cannot be seen, and whether the operation is recomputed."""
        saved: list[SavedTensor] = []
        hidden, again = False, None
        for name in names:
            try:
                held = engine.saved_tensor(node, name)
                for slot in held if isinstance(held, (list, tuple)) else (held,):
                    if slot is None:
                        continue
                    hook = slot.unpack_hook
                    if hook is not None:
                        hidden = True
                        if getattr(hook, "__module__", None) == _CHECKPOINT:  # one hook for each segment
                            result = name.startswith("result") or (again is not None and again.keeps_result)
                            again = Recomputation(id(hook), result)
                    elif (data := slot.data) is not None:
                        saved.append(SavedTensor(name, tuple(data.shape), self._dtype(data.dtype), *_storage(data)))
            except Exception:  # torch before 2.13 does not tell; a graph that was run has no saved tensors
                hidden = True
        return tuple(saved), hidden, again


def _plan(node: Any) -> _Plan:
    slots, sizes, arguments = engine.saved_names(type(node))
    wanted = (*sizes, *(name for name in arguments if name in _ARGUMENTS))
    return _Plan(operation(node), slots, wanted, is_opaque(node))


def _argument(node: Any, name: str) -> Any:
    try:
        return engine.saved_argument(node, name)
    except Exception:
        return None


def _storage(tensor: Any) -> tuple[int | None, int]:
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except Exception:  # tensor classes without memory of their own
        return None, 0


def storages(modules: Any) -> frozenset[int]:
    """The addresses of the memory of the modules' parameters and buffers, as far as known."""
    with engine.no_torch_function():
        return storages_of(tensor for module in modules for tensor in (*own_parameters(module), *own_buffers(module)))


def storages_of(tensors: Iterable[Any]) -> frozenset[int]:
    """The addresses of the memory of tensors, as far as known."""
    with engine.no_torch_function():
        return frozenset(where for tensor in tensors if (where := _storage(tensor)[0]))


def _leaf(variable: Any, torch: Any) -> Leaf:
    try:
        has_gradient = variable.grad is not None
    except Exception:
        has_gradient = False
    return Leaf(isinstance(variable, torch.nn.Parameter), has_gradient, _storage(variable)[0])
