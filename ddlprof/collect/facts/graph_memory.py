"""The memory of a backward: what the graph keeps for it, and what is alive for a while as it runs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddlprof.collect.facts.graph_flow import Flow, Tensor, words
from ddlprof.collect.facts.graph_reader import Seen

_HANDED_ON = words(
    "View UnsafeView ReshapeAlias T Transpose Permute Squeeze Unsqueeze Expand Alias Detach Add Clone Sum Stack Cat"
    " Contiguous Rsub"
)
"""What makes no new gradient of one of its own: the gradient's memory is handed on."""
_LOWER = ("bfloat16", "float16")


class Saved(NamedTuple):
    """What a graph keeps; bytes."""

    all: float | None
    """None where some of it cannot be seen."""
    fixed: float = 0.0
    """The part that does not follow the batch."""
    casts: float = 0.0
    """Copies of weights in a lower precision."""


def saved_memory(graph: Sequence[Seen], flow: Flow, owned: frozenset[int]) -> Saved:
    """What a graph keeps for backward, each memory once and without what is `owned` by the model or the batch."""
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


def temporary_memory(graph: Sequence[Seen], flow: Flow, owned: frozenset[int]) -> float | None:
    """The most bytes alive in backward at once beyond what is kept; None where that cannot be seen.

    Backward is gone through in the engine's order, the latest operation first. A gradient is alive until the operation
    that it is for has run, and what is kept until the last operation that needs it has. Gradients of parameters, which
    stay, are left out.
    """
    sizes = _storages(graph, owned)
    if sizes is None:
        return None
    uses = Counter(storage for seen in graph for storage in _kept(seen, sizes))
    waiting = [sum(consumers.values()) for consumers in flow.consumers]
    ready = [(-graph[number].sequence, number) for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    gradients: dict[int, int] = {}
    alive = most = 0
    while ready:
        _, number = heapq.heappop(ready)
        seen, node = graph[number], flow.nodes[number]
        mine = gradients.pop(number, 0)
        handed_on = mine if seen.name in _HANDED_ON else 0
        for source, tensor in zip(seen.sources, node.sources if node is not None else (), strict=False):
            if tensor is not None and source[0] not in gradients:
                made = tensor.bytes if tensor.grows else 0  # the others are of parameters
                taken = min(handed_on, made)
                handed_on -= taken
                mine -= taken
                gradients[source[0]] = made
                alive += made - taken
        most = max(most, alive)
        alive -= mine
        for storage in _kept(seen, sizes):
            uses[storage] -= 1
            alive -= 0 if uses[storage] else sizes[storage]
        for taker, _ in seen.sources:
            if taker >= 0:
                waiting[taker] -= 1
                if not waiting[taker]:
                    heapq.heappush(ready, (-graph[taker].sequence, taker))
    return float(most)


def _storages(graph: Sequence[Seen], owned: frozenset[int]) -> dict[int, int] | None:
    """The bytes of each memory that is kept; None where some of it cannot be seen."""
    if any(seen.hidden or any(each.storage is None for each in seen.saved) for seen in graph):
        return None
    mine = owned | {seen.leaf.storage for seen in graph if seen.leaf is not None and seen.leaf.is_parameter}
    found = {each.storage: each.storage_bytes for seen in graph for each in seen.saved}
    return {storage: size for storage, size in found.items() if storage and storage not in mine}


def _kept(seen: Seen, sizes: dict[int, int]) -> set[int]:
    """The memories that an operation keeps, among those."""
    return {each.storage for each in seen.saved if each.storage is not None and each.storage in sizes}


def _is_among(shape: Sequence[int], dtype: str, tensors: Iterable[Tensor]) -> bool:
    return any(tuple(shape) == tensor.shape and dtype == tensor.dtype for tensor in tensors)
