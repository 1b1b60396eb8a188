"""What the operations with matrices, norms and indices cost, forward and backward, by what goes in and out of them.

The operators are those that torch launches for the operation and for its derivative (`derivatives.yaml`), with every
operand read once and every result written once. The simpler operations are in `graph_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import prod

from ddlprof.model.operators import Operator
from ddlprof.operators.graph_flow import Node, Tensor

Rule = Callable[[Node], Iterator[Operator]]
"""The operators of an operation in forward and backward; raises where its sizes are not known."""
_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_INDEX_BYTES = 8
_FEW_ROWS = 3072
"""Of more, CUDA sorts the indices before it adds to a table's gradient."""
_COUNTER = Tensor((1,), "int64", False)


def short_dtype(dtype: str) -> str:
    """`fp32` of float32, as operators say it."""
    return "fp8" if dtype.startswith("float8") else _SHORT.get(dtype, dtype)


def operator(
    phase: str, kind: str, name: str, shape: tuple[int, ...], operands: Iterable[Tensor | None], dtype: str,
    *, grows: int | None = 0, flops: float = 0, launches: float = 1, more: tuple[float, float] = (0, 0),
) -> Operator:  # fmt: skip
    """One call. `grows` is the index of the size that follows the batch, if one of the operands does.

    `more`: further bytes, those that follow the batch and those that do not.
    """
    present = [each for each in operands if each is not None]
    growing = more[0] + sum(each.bytes for each in present if each.grows)
    fixed = more[1] + sum(each.bytes for each in present if not each.grows)
    return Operator(
        kind=kind, phase=phase, name=name, dtype=short_dtype(dtype), shape=shape, flops=float(flops),
        bytes=float(growing + fixed), launches=float(launches), count=1.0,
        grows=grows if growing else None, fixed_bytes=float(fixed),
    )  # fmt: skip


def like(tensor: Tensor, shape: tuple[int, ...] | None = None, grows: bool | None = None) -> Tensor:
    """Another tensor of that type."""
    return Tensor(tensor.shape if shape is None else shape, tensor.dtype, tensor.grows if grows is None else grows)


def reduction(phase: str, name: str, whole: Tensor, part: Tensor) -> Operator:
    """A sum of the elements of one tensor into fewer, or the like."""
    return operator(phase, "reduction", name, (whole.elements, part.elements), (whole, part), whole.dtype)


def _known(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise LookupError("an argument is not visible")
    return tensor


def product(left: int, right: int, saved: tuple[str, str], transposed: bool = False, bias: int | None = None) -> Rule:
    """A product of matrices at these positions; `transposed`: the right one is stored as a linear layer's weight is."""

    def rule(node: Node) -> Iterator[Operator]:
        a, b, out = node.argument(left, saved[0]), node.argument(right, saved[1]), node.out
        batched = b is not None and len(b.shape) > 2
        n = out.shape[-1]
        inner = a.shape[-1] if a is not None else _known(b).shape[-1 if transposed else -2]
        batches = prod(out.shape[:-2]) if batched else 1
        m = out.elements // (n * batches)
        a = a or Tensor((*out.shape[:-1], inner), out.dtype, out.grows)
        b = b or Tensor((inner, n), out.dtype, False)
        sizes = {"m": m, "n": n, "k": inner}
        name = "bmm" if batched else "mm"
        added = None if bias is None else node.source(bias)
        grows = {name for name, each in (("m", a), ("n", b)) if each.grows} if out.grows else {"k"}

        def call(phase: str, order: str, operands: tuple[Tensor | None, ...], name: str = name) -> Operator:
            shape = (batches, *(sizes[each] for each in order))
            follows = 0 if batched else next((i for i, each in enumerate(order, 1) if each in grows), 1)
            return operator(phase, "product", name, shape, operands, out.dtype, grows=follows, flops=2 * prod(shape))

        yield call("forward", "mnk", (a, b, out, added), snake(node.name))
        if node.source(left) is not None:
            yield call("backward", "kmn" if _lies_transposed(node, saved[0]) else "mkn", (out, b, a))
        if node.source(right) is not None:
            yield call("backward", "nkm" if transposed or _lies_transposed(node, saved[1]) else "knm", (a, out, b))
        if added is not None and added.elements < out.elements:
            yield reduction("backward", "sum", out, added)

    return rule


def _lies_transposed(node: Node, name: str) -> bool:
    """Whether a matrix is stored by columns, as the weight of a linear layer: its gradient is computed so, too."""
    sizes, strides = (tuple(node.seen.arguments.get(f"{name}_sym_{what}") or ()) for what in ("sizes", "strides"))
    return len(sizes) == 2 and strides == (1, sizes[0])


def convolution(node: Node) -> Iterator[Operator]:
    """The gradients of the input and of the weight cost what forward does each."""
    x, weight, out = node.argument(0, "input"), _known(node.argument(1, "weight")), node.out
    weight = node.source(1) or weight._replace(grows=False)
    groups, transposed = int(node.seen.arguments["groups"] or 1), bool(node.seen.arguments["transposed"])
    points = _known(x) if transposed else out
    taps = prod(weight.shape[2:])
    first, second = weight.shape[0] // groups, weight.shape[1]  # channels out and in, of a transposed one in and out
    into, made = (first, second) if transposed else (second, first)

    def call(
        phase: str, name: str, channels: int, summed: int, operands: tuple[Tensor | None, ...], *more: Tensor | None
    ) -> Operator:
        shape = (out.shape[0], prod(points.shape[2:]), channels, summed * taps, groups, taps)
        return operator(phase, "convolution", name, shape, (*operands, *more), out.dtype, flops=2 * prod(shape[:5]))

    yield call("forward", "convolution", made, into, (x, weight, out), node.source(2))
    if node.source(0) is not None:
        yield call("backward", "convolution_backward_input", into, made, (out, weight, x))
    if node.source(1) is not None:
        yield call("backward", "convolution_backward_weight", made, into, (out, x, weight))
    if (bias := node.source(2)) is not None:
        yield reduction("backward", "convolution_backward_bias", out, bias)


def attention(node: Node) -> Iterator[Operator]:
    """A fused kernel; its backward computes the scores again (as in `torch.utils.flop_counter`)."""
    query, key, value = (node.argument(i, name) for i, name in enumerate(("query", "key", "value")))
    out = node.out
    some_key = _known(key or value)
    width = _known(query or key).shape[-1]
    heads, queries, keys = prod(out.shape[:-2]), out.shape[-2], some_key.shape[-2]
    query = query or like(out, (*out.shape[:-1], width))
    key, value = key or like(some_key, (*some_key.shape[:-1], width)), value or some_key
    shape, scores, name = (heads, queries, keys, width), 2 * heads * queries * keys, snake(node.name)
    wide = out.shape[-1]
    yield operator(
        "forward", "attention", name, shape, (query, key, value, out), out.dtype, flops=scores * (width + wide)
    )
    operands = (query, key, value, out, out, *node.known[:3])
    flops = scores * (3 * width + 2 * wide)
    yield operator("backward", "attention", f"{name}_backward", shape, operands, out.dtype, flops=flops, launches=2)


def recurrent(node: Node) -> Iterator[Operator]:
    """Layers that one kernel runs through time: each of their matrices meets each element of the sequence once."""
    weights = [each for each in node.sources[1:-2] if each is not None]
    matrices = [each for each in weights if len(each.shape) == 2]
    x, out = node.argument(0, "input"), node.out
    if not matrices:
        raise LookupError("no weight needs a gradient")
    directions = 2 if node.seen.arguments.get("bidirectional") else 1
    layers = max(1, len(matrices) // 2)  # times directions
    first = node.seen.arguments.get("batch_first") and node.name != "MkldnnRnnLayer"
    batch, steps = out.shape[:2] if first else out.shape[1::-1]
    width = node.seen.arguments.get("hidden_size") or out.shape[-1] // directions
    shape, name = (steps, batch, int(width), layers), snake(node.name)
    each = 2 * steps * batch
    forward = each * sum(matrix.elements for matrix in matrices)
    yield operator("forward", "recurrent", name, shape, (x, *weights, out), out.dtype, grows=1, flops=forward)
    to_input = 0 if node.source(0) is not None else each * matrices[0].elements
    operands = (x, *weights, out, out, *weights, node.source(0))
    yield operator(
        "backward", "recurrent", f"{name}_backward", shape, operands, out.dtype, grows=1, flops=2 * forward - to_input
    )


def _normalization(
    columns: Callable[[Node, Tensor], tuple[int, int]], grows: int, forward: int = 1, weights: int = 1
) -> Rule:
    """`forward`: launches of forward; `weights`: launches for the gradients of weights and biases."""

    def rule(node: Node) -> Iterator[Operator]:
        out, name = node.out, snake(node.name)
        shape, parameters = columns(node, out), node.sources[1:]
        yield operator(
            "forward", "normalization", name, shape, (out, out, *parameters), out.dtype, grows=grows, launches=forward
        )
        if node.seen.arguments.get("training"):
            yield operator("forward", "elementwise", "add_", (1,), (_COUNTER, _COUNTER), _COUNTER.dtype)
        operands = (out, out, node.source(0), *parameters, *parameters)
        trained = any(each is not None for each in parameters)
        yield operator(
            "backward", "normalization", f"{name}_backward", shape, operands, out.dtype, grows=grows,
            launches=(node.source(0) is not None) + weights * trained,
        )  # fmt: skip

    return rule


def _rows(node: Node, out: Tensor) -> tuple[int, int]:
    width = prod(node.seen.arguments.get("normalized_shape") or out.shape[-1:])
    return out.elements // width, width


def _channels(node: Node, out: Tensor) -> tuple[int, int]:
    return out.shape[1], out.elements // out.shape[1]


def _groups(node: Node, out: Tensor) -> tuple[int, int]:
    rows = out.shape[0] * int(node.seen.arguments["group"])
    return rows, out.elements // rows


def softmax(node: Node) -> Iterator[Operator]:
    """Softmax and its logarithm."""
    out, name = node.out, snake(node.name)
    dimension = int(node.seen.arguments.get("dim") or 0)
    columns = out.shape[dimension - (1 << 64) if dimension >= 1 << 63 else dimension] if out.shape else 1
    shape = (out.elements // max(1, columns), columns)
    yield operator("forward", "softmax", name, shape, (node.source(0), out), out.dtype)
    yield operator("backward", "softmax", f"{name}_backward_data", shape, (out, out, node.source(0)), out.dtype)


def class_loss(node: Node) -> Iterator[Operator]:
    """The loss reads one element of each row; backward fills all of them."""
    scores, name = _known(node.source(0)), snake(node.name)
    columns = scores.shape[1] if len(scores.shape) > 1 else 1
    shape = (scores.elements // max(1, columns), columns)
    few = shape[0] * (_INDEX_BYTES + 2 * scores.bytes // max(1, scores.elements))
    yield operator("forward", "softmax", f"{name}_forward", shape, (), scores.dtype, more=(few, 0))
    yield operator("backward", "softmax", f"{name}_backward", shape, (scores,), scores.dtype, more=(few, 0), launches=2)


def lookup(node: Node) -> Iterator[Operator]:
    """Rows taken from a table; backward fills the table's gradient with zeros and adds to some of its rows."""
    table, out, name = _known(node.source(0)), node.out, snake(node.name)
    indices = node.saved("indices") or node.saved("index")
    elementwise = node.name in ("Gather", "Take")
    width = 1 if elementwise else max(1, prod(table.shape[1:]))
    if node.name in ("Index", "UnsafeIndex", "IndexSelect"):
        width = max(1, out.elements // max(1, indices.elements)) if indices is not None else out.shape[-1]
    shape = (max(1, out.elements // width), width)
    read = like(out) if indices is None else indices._replace(grows=out.grows)
    more = (0.0, float(_INDEX_BYTES * shape[0]))
    more = more if indices is None else (0.0, 0.0)
    read_too = None if indices is None else read
    yield operator("forward", "embedding", name, shape, (out, out, read_too), out.dtype, more=_where(out, more))
    yield operator(
        "backward", "embedding", f"{name}_dense_backward" if name == "embedding" else f"{name}_backward", shape,
        (table, out, out, read_too), out.dtype, more=_where(out, more), launches=2 if shape[0] <= _FEW_ROWS else 10,
    )  # fmt: skip


def _where(out: Tensor, more: tuple[float, float]) -> tuple[float, float]:
    return (sum(more), 0.0) if out.grows else (0.0, sum(more))


@cache
def snake(name: str) -> str:
    """`max_pool2d_with_indices` of MaxPool2DWithIndices."""
    made = []
    for position, letter in enumerate(name):
        before = name[position - 1] if position else ""
        after_dimension = before == "D" and position > 1 and name[position - 2].isdigit()
        if letter.isupper() and (before.islower() or after_dimension):
            made.append("_")
        made.append(letter.lower())
    return "".join(made)


RULES: dict[str, Rule] = {
    "Mm": product(0, 1, ("self", "mat2")),
    "Addmm": product(1, 2, ("mat1", "mat2"), bias=0),
    "Bmm": product(0, 1, ("self", "mat2")),
    "Baddbmm": product(1, 2, ("batch1", "batch2"), bias=0),
    "GroupedMm": product(0, 1, ("self", "mat2")),
    "Linear": product(0, 1, ("input", "weight"), transposed=True, bias=2),
    "MkldnnLinear": product(0, 1, ("self", "weight"), transposed=True, bias=2),
    **dict.fromkeys(("Convolution", "ConvolutionOverrideable"), convolution),
    **dict.fromkeys(("CudnnRnn", "MiopenRnn", "MkldnnRnnLayer"), recurrent),
    **dict.fromkeys(("NativeLayerNorm", "FusedRmsNorm"), _normalization(_rows, 0)),
    "NativeGroupNorm": _normalization(_groups, 0, forward=2, weights=3),
    **dict.fromkeys(
        (
            "NativeBatchNorm", "NativeBatchNormLegit", "NativeBatchNormLegitNoTraining", "CudnnBatchNorm",
            "MiopenBatchNorm", "BatchNormWithUpdate", "BatchNormNoUpdate",
        ),
        _normalization(_channels, 1, forward=2),
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "SafeSoftmax", "MaskedSoftmax"), softmax),
    **dict.fromkeys(("NllLoss", "NllLoss2D"), class_loss),
    **dict.fromkeys(("Embedding", "Index", "UnsafeIndex", "IndexSelect", "Gather", "Take"), lookup),
    **{
        f"ScaledDotProduct{kernel}": attention
        for kernel in (
            "FlashAttention", "FlashAttentionForCpu", "EfficientAttention", "CudnnAttention",
            "FusedAttentionOverrideable",
        )
    },
}  # fmt: skip
"""The operations that these rules are for."""
