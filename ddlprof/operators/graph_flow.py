"""The operations of a graph with the sizes of the tensors between them, and which of these grow with the batch.

A tensor grows with the batch unless it is computed from parameters alone, or is broadcast over the batch where it is
used, like an embedding of positions. Torch is not needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ddlprof.operators.graph_reader import Operation, Output, Shape


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


BYTES = {
    "float64": 8, "complex64": 8, "complex128": 16, "int64": 8, "bfloat16": 2, "float16": 2, "int16": 2,
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""The bytes of one element, for data types with other than 4."""
INDEXED = frozenset({"Embedding", "EmbeddingBag", "Index", "UnsafeIndex", "IndexSelect", "Gather", "Take"})
"""Operations whose result's size follows from indices, which may be data."""
_ON_DATA = words(
    "Addmm Mm Bmm Baddbmm Linear MkldnnLinear Mv Addmv GroupedMm Convolution ConvolutionOverrideable CudnnRnn MiopenRnn"
    " MkldnnRnnLayer NativeLayerNorm FusedRmsNorm NativeBatchNorm NativeBatchNormLegit CudnnBatchNorm MiopenBatchNorm"
    " BatchNormWithUpdate BatchNormNoUpdate NativeGroupNorm PreluKernel"
)
"""Operations of parameters on something that is data if it has no gradient."""
_PERMUTATIONS = frozenset({"Permute", "Transpose"})
_SPREAD = frozenset({"Expand", "Repeat"})
_REDUCED = frozenset({"Sum", "Mean", "Amax", "Amin", "Max", "Min", "LinalgVectorNorm", "Norm", "Var", "Std", "Prod"})


class Tensor(NamedTuple):
    """A tensor between operations."""

    shape: Shape
    dtype: str
    grows: bool

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES.get(self.dtype, 4)


class Node:
    """One operation with its inputs and outputs."""

    def __init__(self, seen: Operation, out: Tensor, sources: tuple[Tensor | None, ...], permuted: bool) -> None:
        self.seen = seen
        self.permuted = permuted
        """Whether its consumer permutes it, so that its gradient arrives with elements in another order."""
        self.out = out
        """The first output."""
        self.sources = sources
        """The differentiable arguments by position."""

    @property
    def name(self) -> str:
        """The name of the operation, as in `Operation`."""
        return self.seen.name

    @property
    def known(self) -> list[Tensor]:
        """The arguments that have a gradient."""
        return [source for source in self.sources if source is not None]

    def source(self, index: int) -> Tensor | None:
        """An argument with a gradient; None for other arguments."""
        return self.sources[index] if index < len(self.sources) else None

    def saved(self, name: str) -> Tensor | None:
        """A saved tensor if it can be seen.

        It is data if the result is data, as parameters are in the graph's edges.
        """
        held = next((saved for saved in self.seen.saved if saved.name == name), None)
        return None if held is None else Tensor(held.shape, held.dtype, self.out.grows)

    def argument(self, index: int, saved: str) -> Tensor | None:
        """An argument with a gradient, or one that is saved, or whose size is."""
        found = self.source(index) or self.saved(saved)
        if found is None and (sizes := self.seen.arguments.get(f"{saved}_sym_sizes")):
            found = Tensor(tuple(sizes), self.out.dtype, self.out.grows)
        return found


class Flow(NamedTuple):
    """A graph with known sizes."""

    nodes: list[Node | None]
    """The nodes by their index in the graph; None if the sizes of the operation cannot be read."""
    consumers: list[dict[int, int]]
    """For each node, the number of operations that use each of its outputs."""


def flow_of(graph: Sequence[Operation], batch: int) -> Flow:
    """The flow of a graph that was run with so many samples."""
    consumers: list[dict[int, int]] = [{} for _ in graph]
    permuted: set[int] = set()
    attention = {seen.sources for seen in graph if seen.name.startswith("ScaledDotProduct")}
    attended = {number for sources in attention for number, _ in sources}  # their gradients have the same layout
    for at, seen in enumerate(graph):
        for number, output in seen.sources:
            if number >= 0:
                consumers[number][output] = consumers[number].get(output, 0) + 1
                if seen.name in _PERMUTATIONS and at not in attended:
                    permuted.add(number)
    order = _consumers_first(graph, consumers)
    fixed = _spread_over_batch(graph, order, batch) if batch > 1 else set()
    grows = [False] * len(graph)
    for number in reversed(order):
        grows[number] = number not in fixed and _carries(graph[number], graph, grows, batch)
    nodes: list[Node | None] = []
    for number, seen in enumerate(graph):
        sources = tuple(_tensor(graph, grows, source, output, batch) for source, output in seen.sources)
        out = _tensor(graph, grows, number, 0, batch)
        nodes.append(None if out is None else Node(seen, out, sources, number in permuted))
    return Flow(nodes, consumers)


def _tensor(graph: Sequence[Operation], grows: list[bool], number: int, output: int, batch: int) -> Tensor | None:
    if number < 0 or output >= len(graph[number].outputs):
        return None
    shape, dtype = graph[number].outputs[output]
    return Tensor(shape, dtype, grows[number] and prod(shape) >= batch)


def _consumers_first(graph: Sequence[Operation], consumers: list[dict[int, int]]) -> list[int]:
    left = [sum(each.values()) for each in consumers]
    order = [number for number, count in enumerate(left) if not count]
    for number in order:
        for source, _ in graph[number].sources:
            if source >= 0:
                left[source] -= 1
                if not left[source]:
                    order.append(source)
    return order


def _carries(seen: Operation, graph: Sequence[Operation], grows: list[bool], batch: int) -> bool:
    """Whether the result of an operation grows with the batch."""
    if seen.leaf is not None:
        return not seen.leaf.is_parameter
    if seen.name in INDEXED or any(number >= 0 and grows[number] for number, _ in seen.sources):
        return True
    made, taken = _elements(seen, 0), sum(_elements(graph[number], out) for number, out in seen.sources if number >= 0)
    if seen.name in _SPREAD:
        return made > taken > 0 and not made // taken % batch
    if all(number >= 0 for number, _ in seen.sources):
        return False
    return seen.name in _ON_DATA or made > taken


def _elements(seen: Operation, output: int) -> int:
    return prod(seen.outputs[output].shape) if output < len(seen.outputs) else 0


def _spread_over_batch(graph: Sequence[Operation], order: list[int], batch: int) -> set[int]:
    """Operations whose result is equal for all samples, and those whose results only they use."""
    fixed: set[int] = set()
    other: set[int] = set()
    """Operations that are also used in another way."""
    for number in order:
        seen = graph[number]
        is_fixed = number in fixed and number not in other
        for source, output in seen.sources:
            if source < 0:
                continue
            same = is_fixed and seen.name not in _REDUCED
            if same or _is_same_for_all(seen.outputs, graph[source].outputs, output, batch):
                fixed.add(source)
            else:
                other.add(source)
    return {number for number in fixed - other if graph[number].leaf is None}


def _is_same_for_all(made: tuple[Output, ...], taken: tuple[Output, ...], output: int, batch: int) -> bool:
    """Whether an argument lacks the batch that the result has: (T, D) or (1, T, D) added to (batch, T, D)."""
    if not made or output >= len(taken):
        return False
    whole, part = made[0].shape, taken[output].shape
    if len(part) > len(whole) or batch in part or prod(part) >= prod(whole):
        return False
    part = (1,) * (len(whole) - len(part)) + part
    if any(own not in (1, all_) for own, all_ in zip(part, whole, strict=True)):
        return False
    first = part[0] == 1 < whole[0] and not whole[0] % batch
    second = len(whole) > 1 and part[1] == 1 < whole[1] == batch != whole[0]
    return first or second
