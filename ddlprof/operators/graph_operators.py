"""The operators of a step, computed without torch from the autograd graphs that `graph_reader` has read.

Operations without gradients are in no graph: copies of the batch, the forward of frozen parts, clipping of gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ddlprof.model.operators import Operator
from ddlprof.operators.graph_flow import Flow, Node, Tensor, flow_of
from ddlprof.operators.graph_memory import backward_memory_of, saved_memory
from ddlprof.operators.graph_reader import GraphReader, Operation
from ddlprof.operators.graph_rules import operator
from ddlprof.operators.graph_tables import ALL_RULES, other

MOST_OPERATORS = 3000
"""The most operators in a record. Of more, those with most FLOPs and bytes are kept."""
_REENTRANT = "CheckpointFunction"
_COMPILED = "CompiledFunction"
_MOST_NAMED = 5


class GraphStep(NamedTuple):
    """Forward and backward of a mean micro-batch."""

    operators: tuple[Operator, ...]
    checkpointing: bool
    compiled: bool
    saved_bytes: float | None
    saved_fixed_bytes: float
    saved_cast_bytes: float
    temporary_bytes: float | None
    points: tuple[tuple[float, float], ...]
    unseen: tuple[str, ...]


def step_of(
    reader: GraphReader, batch: int, owned: frozenset[int] = frozenset(), microbatches: float | None = None
) -> GraphStep | None:
    """The operators in the graphs that were read; None if there are none.

    `batch`: the samples of one micro-batch. `owned`: addresses of the memory of parameters and buffers. `microbatches`:
    the number of micro-batches in the graphs if it is not that of backward passes (a GAN has several of them for one
    batch).
    """
    if reader.given_up or not reader.microbatches or not reader.graphs:
        return None
    counts: Counter[Operator] = Counter()
    failed = 0
    memories = []
    for graph in reader.graphs:
        graph = graph._replace(nodes=_until_all_is_there(graph.nodes))
        flow = flow_of(graph.nodes, batch)
        failed += sum(node is None for node in flow.nodes)
        for node, times in _alike(flow):
            found = _operators_of(node, graph.nested)
            failed += times * (found is None)
            for each in found or ():
                counts[each] += times
        counts.update(_sums_of_gradients(flow))
        kept = saved_memory(graph.nodes, flow, owned)
        share = kept.fixed / kept.all if kept.all else 0.0
        memories.append((kept, backward_memory_of(graph.nodes, flow, owned, share)))
    seen = [each for graph in reader.graphs for each in graph.nodes]
    merged = [replace(each, count=count / (microbatches or reader.microbatches)) for each, count in counts.items()]
    unseen = list(_unseen(seen, failed))
    if len(merged) > MOST_OPERATORS:
        merged.sort(key=lambda each: each.count * max(each.bytes, each.flops), reverse=True)
        unseen.append(f"{len(merged) - MOST_OPERATORS} kinds of small operators are left out")
    saved, backward_memory = max(memories, key=lambda each: (each[0].all is None, each[0].all or 0.0))
    return GraphStep(
        operators=tuple(merged[:MOST_OPERATORS]),
        checkpointing=any(graph.nested for graph in reader.graphs) or any(each.again for each in seen),
        compiled=any(each.name == _COMPILED for each in seen),
        saved_bytes=saved.all,
        saved_fixed_bytes=saved.fixed,
        saved_cast_bytes=saved.casts,
        temporary_bytes=backward_memory.temporary,
        points=backward_memory.points,
        unseen=tuple(unseen),
    )


def _operators_of(node: Node, nested: bool) -> list[Operator] | None:
    """The operators of one operation; None if its sizes are not known."""
    seen = node.seen
    if seen.leaf is not None:
        gradient = node.out
        add = operator("backward", "elementwise", "add_", (gradient.elements,), (gradient,) * 3, gradient.dtype)
        return [add] if seen.leaf.is_parameter and seen.leaf.has_gradient else []
    if seen.opaque is not None or not node.known:
        return []
    try:
        found = list(ALL_RULES.get(seen.name, other)(node))
    except Exception:  # sizes behind hooks, or an operator that differs in this version of torch
        return None
    forward = [each for each in found if each.phase == "forward"]
    again = [replace(each, phase="backward") for each in forward] if nested or seen.again else []
    return again + [each for each in found if each.phase == "backward" or not seen.repeated]


def _until_all_is_there(nodes: list[Operation]) -> list[Operation]:
    """Leaves out what checkpointing need not recompute.

    It recomputes a segment until everything that backward needs is there. So its last operation is not recomputed if
    that keeps only its arguments.
    """
    last: dict[int, int] = {}
    for number, seen in enumerate(nodes):
        if seen.again is not None:
            segment = seen.again.segment
            if segment not in last or nodes[last[segment]].sequence < seen.sequence:
                last[segment] = number
    nodes = list(nodes)
    for number in last.values():
        again = nodes[number].again
        if again is not None and not again.keeps_result:
            nodes[number] = nodes[number]._replace(again=None)
    return nodes


def _alike(flow: Flow) -> Iterable[tuple[Node, int]]:
    """One of each set of operations with equal sizes, and the size of the set."""
    found: dict[Any, list[Any]] = {}
    for node in flow.nodes:
        if node is None:
            continue
        seen = node.seen
        saved = tuple((each.name, each.shape, each.dtype) for each in seen.saved)
        leaf = None if seen.leaf is None else (seen.leaf.is_parameter, seen.leaf.has_gradient)
        sizes = (seen.name, node.out, node.sources, saved, tuple(map(str, seen.arguments.values())))
        found.setdefault((*sizes, leaf, node.permuted, seen.opaque, seen.again is None, seen.repeated), [node, 0])[
            1
        ] += 1
    return ((node, times) for node, times in found.values())


def _sums_of_gradients(flow: Flow) -> Counter[Operator]:
    """The sums of gradients. If several operations use a tensor, it has several gradients, which the engine adds up."""
    sums: Counter[Tensor] = Counter()
    for node, consumers in zip(flow.nodes, flow.consumers, strict=True):
        uses = consumers.get(0, 0)
        if node is not None and uses > 1:
            sums[node.out] += uses - 1
    found: Counter[Operator] = Counter()
    for out, times in sums.items():  # another shape with as many elements is the same operator
        found[operator("backward", "elementwise", "add", (out.elements,), (out,) * 3, out.dtype)] += times
    return found


def _unseen(nodes: Iterable[Operation], failed: int) -> Iterator[str]:
    nodes = list(nodes)
    compiled = sum(seen.name == _COMPILED for seen in nodes)
    if compiled:
        yield f"what torch.compile compiled is one piece ({compiled} calls): its operators are not told apart"
    own = Counter(seen.opaque for seen in nodes if seen.opaque and seen.name not in (_REENTRANT, _COMPILED))
    for name, count in own.most_common(_MOST_NAMED):
        calls = "1 call" if count == 1 else f"{count} calls"
        yield f"autograd function {name} ({calls}): its operators are not in the graph"
    if len(own) > _MOST_NAMED:
        yield f"{len(own) - _MOST_NAMED} more autograd functions: their operators are not in the graph"
    if failed:
        yield f"{failed} of {len(nodes)} operations: their sizes cannot be read"
