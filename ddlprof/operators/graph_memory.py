"""The memory of a backward pass: what the graph keeps for it, and what is alive for some time while it runs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ddlprof.model.operators import highest
from ddlprof.operators.graph_flow import Flow, Tensor, words
from ddlprof.operators.graph_reader import Operation

_HANDED_ON = words(
    "View UnsafeView ReshapeAlias T Transpose Permute Squeeze Unsqueeze Expand Alias Detach Add Clone Sum Stack Cat"
    " Contiguous Rsub"
)
"""Operations that pass the gradient's memory on instead of making a new gradient."""
_LOWER = ("bfloat16", "float16")


class Saved(NamedTuple):
    """What a graph keeps, in bytes."""

    all: float | None
    """All bytes kept; None if some cannot be seen."""
    fixed: float = 0.0
    """The bytes that do not grow with the batch."""
    casts: float = 0.0
    """The bytes of copies of weights in a lower precision."""


def saved_memory(graph: Sequence[Operation], flow: Flow, owned: frozenset[int]) -> Saved:
    """The bytes that a graph keeps for backward.

    Each memory counts once, without memory that is `owned` by the model or the batch.
    """
    sizes = _storages(graph, owned)
    if sizes is None:
        return Saved(None)
    weights: dict[int, bool] = {}
    for seen, node in zip(graph, flow.nodes, strict=True):
        fixed = [source for source in node.known if not source.grows] if node is not None else []
        for each in seen.saved:
            if each.storage is not None and each.storage in sizes and _is_among(each.shape, each.dtype, fixed):
                weights[each.storage] = each.dtype in _LOWER
    return Saved(
        float(sum(sizes.values())),
        float(sum(sizes[storage] for storage in weights)),
        float(sum(sizes[storage] for storage, cast in weights.items() if cast)),
    )


class BackwardMemory(NamedTuple):
    """What is alive while backward runs, in bytes, without memory that is `owned` by the model or the batch."""

    temporary: float | None
    """The most bytes at once besides what is kept and the gradients of parameters."""
    points: tuple[tuple[float, float], ...] = ()
    """See `StepMemory.points`."""


def backward_memory_of(
    graph: Sequence[Operation], flow: Flow, owned: frozenset[int], fixed_share: float = 0.0
) -> BackwardMemory:
    """What is alive while backward runs in the engine's order, which is the latest operation first.

    A gradient is alive until the operation that takes it has run; kept memory is alive until the last operation that
    needs it has run. Gradients of parameters stay. `fixed_share`: the share of all kept memory that does not grow with
    the batch.
    """
    sizes = _storages(graph, owned)
    if sizes is None:
        return BackwardMemory(None)
    uses = Counter(storage for seen in graph for storage in _kept(seen, sizes))
    gradients: dict[int, _Gradient] = {}
    kept, alive, done = sum(sizes.values()), _Gradient(0, 0), 0
    points = [(kept * fixed_share, kept * (1 - fixed_share))]
    most = 0
    for number in _order(graph, flow):
        seen, node = graph[number], flow.nodes[number]
        mine = gradients.pop(number, _Gradient(0, 0))
        handed_on = mine if seen.name in _HANDED_ON else _Gradient(0, 0)
        second = _Gradient(0, 0)
        for (source, _), tensor in zip(seen.sources, node.sources if node is not None else (), strict=False):
            if tensor is None:
                continue
            if source in gradients:  # it is added to the other one, then freed
                if not any(handed_on):
                    second = second.plus(_of(tensor, tensor.bytes))
                continue
            size = tensor.bytes
            if seen.name == "Sum" and node is not None:  # the same number everywhere, without memory
                size = min(size, node.out.bytes)
            made = _of(tensor, size)
            taken = handed_on.common(made)
            handed_on, mine = handed_on.less(taken), mine.less(taken)
            gradients[source] = made
            alive = alive.plus(made.less(taken))
        fixed, at_once = kept * fixed_share, alive.plus(second)
        points.append((done + at_once.of_parameters + fixed, kept - fixed + at_once.of_activations))
        most = max(most, kept + at_once.of_activations)
        alive = alive.less(mine)
        if seen.leaf is not None and not seen.leaf.has_gradient:
            done += mine.of_parameters
        for storage in _kept(seen, sizes):
            uses[storage] -= 1
            kept -= 0 if uses[storage] else sizes[storage]
    return BackwardMemory(float(max(0, most - sum(sizes.values()))), highest(points))


class _Gradient(NamedTuple):
    """The bytes of gradients, with those of parameters apart."""

    of_activations: int
    of_parameters: int

    def plus(self, other: _Gradient) -> _Gradient:
        return _Gradient(self.of_activations + other.of_activations, self.of_parameters + other.of_parameters)

    def less(self, other: _Gradient) -> _Gradient:
        return _Gradient(self.of_activations - other.of_activations, self.of_parameters - other.of_parameters)

    def common(self, other: _Gradient) -> _Gradient:
        return _Gradient(min(self.of_activations, other.of_activations), min(self.of_parameters, other.of_parameters))


def _of(tensor: Tensor, size: int) -> _Gradient:
    """The gradient of a tensor. If it does not grow with the batch, the tensor is a parameter or made of parameters."""
    return _Gradient(size, 0) if tensor.grows else _Gradient(0, size)


def _order(graph: Sequence[Operation], flow: Flow) -> Iterator[int]:
    """The indices of operations in the engine's order."""
    waiting = [sum(consumers.values()) for consumers in flow.consumers]
    ready = [(-graph[number].sequence, number) for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    while ready:
        _, number = heapq.heappop(ready)
        yield number
        for source, _ in graph[number].sources:
            if source >= 0:
                waiting[source] -= 1
                if not waiting[source]:
                    heapq.heappush(ready, (-graph[source].sequence, source))


def _storages(graph: Sequence[Operation], owned: frozenset[int]) -> dict[int, int] | None:
    """The bytes of each memory that is kept; None if some cannot be seen."""
    if any(seen.hidden or any(each.storage is None for each in seen.saved) for seen in graph):
        return None
    mine = owned | {seen.leaf.storage for seen in graph if seen.leaf is not None and seen.leaf.is_parameter}
    found = {each.storage: each.storage_bytes for seen in graph for each in seen.saved}
    return {storage: size for storage, size in found.items() if storage and storage not in mine}


def _kept(seen: Operation, sizes: dict[int, int]) -> set[int]:
    """The memories in `sizes` that an operation keeps."""
    return {each.storage for each in seen.saved if each.storage is not None and each.storage in sizes}


def _is_among(shape: Sequence[int], dtype: str, tensors: Iterable[Tensor]) -> bool:
    return any(tuple(shape) == tensor.shape and dtype == tensor.dtype for tensor in tensors)
