"""The operators of a step, worked out of the autograd graphs that `graph_reader` has read, without torch.

What has no gradient is in no graph: copies of the batch, a frozen body's forward, clipping of gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ddlprof.collect.facts.graph_flow import Flow, Node, Tensor, flow_of
from ddlprof.collect.facts.graph_memory import moments
from ddlprof.collect.facts.graph_reader import Graph, GraphReader, Seen
from ddlprof.collect.facts.graph_rules import operator
from ddlprof.collect.facts.graph_tables import TABLE, other
from ddlprof.model.operators import Operator, highest

MOST_OPERATORS = 3000
"""In one record; of more, those that compute and move most are kept."""
_REENTRANT = "CheckpointFunction"
_COMPILED = "CompiledFunction"
_MOST_NAMED = 5


class Step(NamedTuple):
    """Forward and backward of a mean micro-batch."""

    operators: tuple[Operator, ...]
    checkpointing: bool
    compiled: bool
    saved_bytes: float | None
    saved_fixed_bytes: float
    saved_cast_bytes: float
    temporary_bytes: float | None
    points: tuple[tuple[float, float], ...]
    largest_tensor_bytes: float | None
    unseen: tuple[str, ...]


def step_of(
    reader: GraphReader, batch: int, owned: frozenset[int] = frozenset(), microbatches: float | None = None
) -> Step | None:
    """The operators of the graphs that were read; None where nothing was.

    `batch`: samples of one micro-batch; `owned`: where the memory of parameters and buffers begins; `microbatches`:
    how many the graphs are of, where that is not the number of backwards (a GAN has several backwards for one batch).
    """
    if reader.given_up or not reader.microbatches or not reader.graphs:
        return None
    counts: Counter[Operator] = Counter()
    failed = 0
    largest = parameter = 0
    memories = []
    for graph in reader.graphs:
        flow = flow_of(graph.nodes, batch)
        failed += sum(node is None for node in flow.nodes)
        for node in flow.nodes:
            if node is not None:
                found = _operators_of(node, graph.nested)
                failed += found is None
                counts.update(found or ())
                largest = max(largest, _alive(node, flow))
                parameter = max(parameter, node.out.bytes if node.seen.leaf and node.seen.leaf.is_parameter else 0)
        counts.update(_sums_of_gradients(flow))
        memories.append(saved_memory(graph, flow, owned))
    seen = [each for graph in reader.graphs for each in graph.nodes]
    merged = [replace(each, count=count / (microbatches or reader.microbatches)) for each, count in counts.items()]
    unseen = list(_unseen(seen, failed))
    if len(merged) > MOST_OPERATORS:
        merged.sort(key=lambda each: each.count * max(each.bytes, each.flops), reverse=True)
        unseen.append(f"{len(merged) - MOST_OPERATORS} kinds of small operators are left out")
    memory = max(memories, key=lambda each: (each.all is None, each.all or 0.0))
    return Step(
        operators=tuple(merged[:MOST_OPERATORS]),
        checkpointing=any(graph.nested for graph in reader.graphs) or any(each.again for each in seen),
        compiled=any(each.name == _COMPILED for each in seen),
        saved_bytes=memory.all,
        saved_fixed_bytes=memory.fixed,
        saved_cast_bytes=memory.casts,
        temporary_bytes=float(largest) or None,
        points=memory.points,
        largest_tensor_bytes=float(parameter) or None,
        unseen=tuple(unseen),
    )


def _operators_of(node: Node, nested: bool) -> list[Operator] | None:
    """The operators of one operation; None where its sizes are not known."""
    seen = node.seen
    if seen.leaf is not None:
        gradient = node.out
        add = operator("backward", "elementwise", "add_", (gradient.elements,), (gradient,) * 3, gradient.dtype)
        return [add] if seen.leaf.is_parameter and seen.leaf.has_gradient else []
    if seen.opaque is not None or not node.known:
        return []
    try:
        found = list(TABLE.get(seen.name, other)(node))
    except Exception:  # sizes behind hooks, or an operator whose form is another in this torch
        return None
    forward = [each for each in found if each.phase == "forward"]
    again = [replace(each, phase="backward") for each in forward] if nested or seen.again else []
    return again + [each for each in found if each.phase == "backward" or not seen.repeated]


def _sums_of_gradients(flow: Flow) -> Iterator[Operator]:
    """What several operations take has several gradients, which the engine adds up."""
    for node, consumers in zip(flow.nodes, flow.consumers, strict=True):
        uses = consumers.get(0, 0) if node is not None else 0
        if node is not None:
            add = operator("backward", "elementwise", "add", (node.out.elements,), (node.out,) * 3, node.out.dtype)
            yield from (add for _ in range(uses - 1))


def _alive(node: Node, flow: Flow) -> int:
    """Bytes of what goes in and out of an operation's backward, as it is not kept beyond."""
    return node.out.bytes + sum(source.bytes for source in node.known) if node.seen.leaf is None else 0


class _Memory(NamedTuple):
    all: float | None
    fixed: float = 0.0
    casts: float = 0.0
    points: tuple[tuple[float, float], ...] = ()


def saved_memory(graph: Graph, flow: Flow, owned: frozenset[int]) -> _Memory:
    """Bytes of what a graph keeps for backward, each memory once; None where some of it cannot be seen."""
    if any(seen.hidden for seen in graph.nodes):
        return _Memory(None)
    mine = owned | {seen.leaf.storage for seen in graph.nodes if seen.leaf and seen.leaf.is_parameter}
    sizes: dict[int, int] = {}
    weights: dict[int, bool] = {}
    for seen, node in zip(graph.nodes, flow.nodes, strict=True):
        fixed = [source for source in node.known if not source.grows] if node is not None else []
        for each in seen.saved:
            if each.storage is None:
                return _Memory(None)
            if not each.storage or each.storage in mine:
                continue
            sizes[each.storage] = each.storage_bytes
            if _is_among(each.shape, each.dtype, fixed):
                weights[each.storage] = each.dtype in ("bfloat16", "float16")
    return _Memory(
        float(sum(sizes.values())),
        float(sum(sizes[storage] for storage in weights)),
        float(sum(sizes[storage] for storage, cast in weights.items() if cast)),
        highest(moments(graph, flow, owned)),
    )


def _is_among(shape: Sequence[int], dtype: str, tensors: Iterable[Tensor]) -> bool:
    return any(tuple(shape) == tensor.shape and dtype == tensor.dtype for tensor in tensors)


def _unseen(nodes: Iterable[Seen], failed: int) -> Iterator[str]:
    nodes = list(nodes)
    compiled = sum(seen.name == _COMPILED for seen in nodes)
    if compiled:
        yield f"what torch.compile compiled is one piece ({compiled} calls): its operators are not told apart"
    own = Counter(seen.opaque for seen in nodes if seen.opaque and seen.name not in (_REENTRANT, _COMPILED))
    for name, count in own.most_common(_MOST_NAMED):
        yield f"autograd function {name} ({count} calls): its operators are not in the graph"
    if len(own) > _MOST_NAMED:
        yield f"{len(own) - _MOST_NAMED} more autograd functions: their operators are not in the graph"
    if failed:
        yield f"{failed} of {len(nodes)} operations: their sizes cannot be read"
