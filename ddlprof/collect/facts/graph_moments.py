"""What is alive together while backward goes through a graph: gradients that come, saved tensors that go."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ddlprof.collect.facts.graph_flow import Flow, Node
from ddlprof.collect.facts.graph_reader import Graph, Seen

_PASSED_ON = frozenset({
    "Add", "Sub", "View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Squeeze", "Unsqueeze", "Alias",
    "Detach",
})  # fmt: skip
"""The gradient of what goes into them is the memory of the one that came."""
_LOSSES = frozenset({
    "LogSoftmax", "NllLoss", "MseLoss", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy", "SmoothL1Loss", "L1Loss",
    "HuberLoss", "KlDiv",
})  # fmt: skip
"""What comes into them is a result of the model, which scripts hold on to until the step is over."""


def moments(graph: Graph, flow: Flow, owned: frozenset[int], fixed_share: float = 0.0) -> list[tuple[float, float]]:
    """The bytes of parameters' gradients made so far (with all that does not grow with the batch), and of all else,
    after each operation of backward.

    `owned`: where the memory of parameters and buffers begins, which does not count; `fixed_share`: of what is saved,
    the share that does not grow.
    """
    mine = owned | {seen.leaf.storage for seen in graph.nodes if seen.leaf and seen.leaf.is_parameter}
    saved = _Saved(graph, mine)
    results = _results(graph, flow, saved)
    flows: dict[int, int] = {}
    fixed = grown = 0
    found = [_moment(fixed, grown + results, saved.bytes, fixed_share)]
    for number in _order(graph, flow):
        node, seen = flow.nodes[number], graph.nodes[number]
        arrived = flows.pop(number, 0)
        if seen.leaf is not None and seen.leaf.is_parameter:  # also where it is added to what is there
            continue
        passed = _passed_to(node, arrived) if node is not None else None
        if node is not None and seen.leaf is None:
            for source, made in _made(node, passed):
                # What several operations use gets the sum of their gradients, which needs no more memory.
                more = max(0, made - flows.get(source, 0))
                flows[source] = flows.get(source, 0) + more
                grows = _grows(flow, source)
                fixed, grown = fixed + more * (not grows), grown + more * grows
            found.append(_moment(fixed, grown + results, saved.bytes, fixed_share))
        if passed is not None:
            flows[passed] = flows.get(passed, 0) + arrived
        elif _grows(flow, number):
            grown -= arrived
        else:
            fixed -= arrived
        saved.bytes -= saved.freed_by(number)
    found.append(_moment(fixed, grown + results, saved.bytes, fixed_share))
    return found


def _moment(fixed: int, grown: int, saved: int, fixed_share: float) -> tuple[float, float]:
    return fixed + saved * fixed_share, grown + saved * (1 - fixed_share)


def _grows(flow: Flow, number: int) -> bool:
    node = flow.nodes[number]
    return node is None or node.out.grows


def _passed_to(node: Node, arrived: int) -> int | None:
    """Where the memory of the gradient that came goes on to; None: nowhere. Of two it is the one that runs later."""
    if node.name not in _PASSED_ON:
        return None
    pairs = zip(node.seen.sources, node.sources, strict=True)
    return max((number for (number, _), t in pairs if number >= 0 and t and t.bytes == arrived), default=None)


def _made(node: Node, passed: int | None) -> Iterator[tuple[int, int]]:
    """The gradients that an operation makes: where they go, and their bytes."""
    for (number, _), tensor in zip(node.seen.sources, node.sources, strict=True):
        if number >= 0 and tensor is not None and number != passed:
            shared = passed is not None and tensor.bytes == node.out.bytes
            yield number, 0 if shared else tensor.bytes


def _order(graph: Graph, flow: Flow) -> Iterator[int]:
    """As torch's engine does: of the operations whose users have run, gradients of parameters first, else the one that
    was called last."""
    left = [sum(each.values()) for each in flow.consumers]
    ready = [(*_turn(graph.nodes[number]), number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    while ready:
        *_, number = heapq.heappop(ready)
        yield number
        for source, _ in graph.nodes[number].sources:
            if source >= 0:
                left[source] -= 1
                if not left[source]:
                    heapq.heappush(ready, (*_turn(graph.nodes[source]), source))


def _turn(seen: Seen) -> tuple[bool, int]:
    return seen.leaf is None, -seen.sequence


class _Saved:
    """Saved tensors, each memory once, and which operation is the last to use it."""

    def __init__(self, graph: Graph, mine: frozenset[int | None]) -> None:
        self._users: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self._of: list[list[int]] = []
        for seen in graph.nodes:
            own = {e.storage: e.storage_bytes for e in seen.saved if e.storage and e.storage not in mine}
            self.sizes.update(own)
            self._of.append(list(own))
            for storage in self._of[-1]:
                self._users[storage] = self._users.get(storage, 0) + 1
        self.bytes = sum(self.sizes.values())

    def freed_by(self, number: int) -> int:
        """The bytes that nobody needs once that operation has run."""
        freed = 0
        for storage in self._of[number]:
            self._users[storage] -= 1
            if not self._users[storage]:
                freed += self.sizes[storage]
        return freed


def _results(graph: Graph, flow: Flow, saved: _Saved) -> int:
    """The bytes of the model's results that no operation has saved."""
    sizes = list(saved.sizes.values())
    found: set[int] = set()
    for node in flow.nodes:
        if node is not None and node.name in _LOSSES:
            kept = {each.shape for each in node.seen.saved}
            found |= {tensor.bytes for tensor in node.known if node.name == "LogSoftmax" or tensor.shape not in kept}
    return sum(size for size in found if sizes.count(size) < 2)
