"""The cost of matrix products, norms and look-ups, forward and backward, by the tensors that go in and out.

The operators are those that torch launches for the operation and its derivative (`derivatives.yaml`). Every operand is
read once and every result written once. Simpler operations are in `graph_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import prod

from ddlprof.model.operators import BACKWARD, CAUSAL, Operator
from ddlprof.operators import formulas
from ddlprof.operators.formulas import short_dtype
from ddlprof.operators.graph_flow import Node, Tensor

Rule = Callable[[Node], Iterator[Operator]]
"""Yields the operators of an operation in forward and backward. Raises an error if its sizes are not known."""
_INDEX_BYTES = 8
_COUNTER = Tensor((1,), "int64", False)


def operator(
    phase: str, kind: str, name: str, shape: tuple[int, ...], operands: Iterable[Tensor | None], dtype: str,
    *, grows: int | None = 0, flops: float = 0, launches: float = 1, more: tuple[float, float] = (0, 0),
) -> Operator:  # fmt: skip
    """One operator. `grows`: the index of the size that grows with the batch, if one of the operands does.

    `more`: further bytes, as those that grow with the batch and those that do not.
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
    """Another tensor of the same data type."""
    return Tensor(tensor.shape if shape is None else shape, tensor.dtype, tensor.grows if grows is None else grows)


def reduction(phase: str, name: str, whole: Tensor, part: Tensor) -> Operator:
    """An operator that reduces the elements of one tensor to fewer, such as a sum."""
    return operator(phase, "reduction", name, (whole.elements, part.elements), (whole, part), whole.dtype)


def _known(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise LookupError("an argument is not visible")
    return tensor


def product(place: formulas.Product) -> Rule:
    """The rule of a matrix product whose matrices are at `place`."""
    left, right, saved, transposed, bias = place

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
            flops = formulas.product_flops(*shape)
            return operator(phase, "product", name, shape, operands, out.dtype, grows=follows, flops=flops)

        yield call("forward", "mnk", (a, b, out, added), snake(node.name))
        if node.source(left) is not None:
            yield call("backward", "kmn" if _lies_transposed(node, saved[0]) else "mkn", (out, b, a))
        if node.source(right) is not None:
            yield call("backward", "nkm" if transposed or _lies_transposed(node, saved[1]) else "knm", (a, out, b))
        if added is not None and added.elements < out.elements:
            yield reduction("backward", "sum", out, added)

    return rule


def _lies_transposed(node: Node, name: str) -> bool:
    """Whether a matrix is stored by columns, like the weight of a linear layer.

    Its gradient is then computed so, too.
    """
    sizes, strides = (tuple(node.seen.arguments.get(f"{name}_sym_{what}") or ()) for what in ("sizes", "strides"))
    return len(sizes) == 2 and strides == (1, sizes[0])


def convolution(node: Node) -> Iterator[Operator]:
    """A convolution. The gradients of input and weight cost as much as forward each."""
    x, weight, out = node.argument(0, "input"), _known(node.argument(1, "weight")), node.out
    weight = node.source(1) or weight._replace(grows=False)
    groups, transposed = int(node.seen.arguments["groups"] or 1), bool(node.seen.arguments["transposed"])
    points = _known(x) if transposed else out
    sizes = formulas.convolution(points.shape, weight.shape, points.shape, groups, transposed)

    def call(phase: str, name: str, shape: tuple[int, ...], *operands: Tensor | None) -> Operator:
        return operator(phase, "convolution", name, shape, operands, out.dtype, flops=sizes.flops)

    yield call("forward", "convolution", sizes.forward, x, weight, out, node.source(2))
    if node.source(0) is not None:
        yield call("backward", "convolution_backward_input", sizes.input_gradient, out, weight, x)
    if node.source(1) is not None:
        yield call("backward", "convolution_backward_weight", sizes.forward, out, x, weight)
    if (bias := node.source(2)) is not None:
        yield reduction("backward", "convolution_backward_bias", out, bias)


def attention(node: Node) -> Iterator[Operator]:
    """Fused attention."""
    query, key, value = (node.argument(i, name) for i, name in enumerate(("query", "key", "value")))
    out = node.out
    some_key = _known(key or value)
    width = _known(query or key).shape[-1]
    heads, queries, keys = prod(out.shape[:-2]), out.shape[-2], some_key.shape[-2]
    query = query or like(out, (*out.shape[:-1], width))
    key, value = key or like(some_key, (*some_key.shape[:-1], width)), value or some_key
    causal = bool(node.seen.arguments.get("is_causal"))
    shape, name = (heads, queries, keys, width), snake(node.name) + CAUSAL * causal
    if any(each.name == "attn_mask" for each in node.seen.saved):  # which flash attention takes on processors alone
        name = name.replace("flash", "efficient")
    forward, backward = formulas.fused_attention_flops(heads, queries, keys, width, out.shape[-1], causal)
    yield operator("forward", "attention", name, shape, (query, key, value, out), out.dtype, flops=forward)
    operands = (query, key, value, out, out, *node.known[:3])
    yield operator("backward", "attention", name + BACKWARD, shape, operands, out.dtype, flops=backward, launches=2)


def recurrent(node: Node) -> Iterator[Operator]:
    """Recurrent layers that one kernel runs over all time steps."""
    weights = [each for each in node.sources[1:-2] if each is not None]
    matrices = [each for each in weights if len(each.shape) == 2]
    x, out = node.argument(0, "input"), node.out
    if not matrices:
        raise LookupError("no weight needs a gradient")
    directions = 2 if node.seen.arguments.get("bidirectional") else 1
    layers = max(1, len(matrices) // 2)  # layers times directions
    first = node.seen.arguments.get("batch_first") and node.name != "MkldnnRnnLayer"
    batch, steps = out.shape[:2] if first else out.shape[1::-1]
    width = node.seen.arguments.get("hidden_size") or out.shape[-1] // directions
    shape, name = (steps, batch, int(width), layers), snake(node.name)
    flops = formulas.recurrent_flops(steps * batch, [each.elements for each in matrices], node.source(0) is not None)
    yield operator("forward", "recurrent", name, shape, (x, *weights, out), out.dtype, grows=1, flops=flops.forward)
    operands = (x, *weights, out, out, *weights, node.source(0))
    yield operator(
        "backward", "recurrent", f"{name}_backward", shape, operands, out.dtype, grows=1, flops=flops.backward
    )


def _normalization(
    columns: Callable[[Node, Tensor], tuple[int, int]], grows: int, forward: int = 1, weights: int = 1
) -> Rule:
    """The rule of a normalisation. `forward`: launches in forward.

    `weights`: launches for gradients of weight and bias.
    """

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
    return formulas.rows_and_columns(out.elements, prod(node.seen.arguments.get("normalized_shape") or out.shape[-1:]))


def _channels(node: Node, out: Tensor) -> tuple[int, int]:
    return formulas.batch_norm_shape(out.shape)


def _groups(node: Node, out: Tensor) -> tuple[int, int]:
    return formulas.group_norm_shape(out.shape[0], int(node.seen.arguments["group"]), out.elements)


def softmax(node: Node) -> Iterator[Operator]:
    """Softmax and log-softmax."""
    out, name = node.out, snake(node.name)
    dimension = int(node.seen.arguments.get("dim") or 0)
    columns = out.shape[dimension - (1 << 64) if dimension >= 1 << 63 else dimension] if out.shape else 1
    shape = formulas.rows_and_columns(out.elements, columns)
    yield operator("forward", "softmax", name, shape, (node.source(0), out), out.dtype)
    yield operator("backward", "softmax", f"{name}_backward_data", shape, (out, out, node.source(0)), out.dtype)


def class_loss(node: Node) -> Iterator[Operator]:
    """A loss over classes. Forward reads one element of each row; backward fills all of them."""
    scores, name = _known(node.source(0)), snake(node.name)
    columns = scores.shape[1] if len(scores.shape) > 1 else 1
    shape = formulas.rows_and_columns(scores.elements, columns)
    few = shape[0] * (_INDEX_BYTES + 2 * scores.bytes // max(1, scores.elements))
    yield operator("forward", "softmax", f"{name}_forward", shape, (), scores.dtype, more=(few, 0))
    yield operator("backward", "softmax", f"{name}_backward", shape, (scores,), scores.dtype, more=(few, 0), launches=2)


def lookup(node: Node) -> Iterator[Operator]:
    """Taking rows of a table. Backward fills the table's gradient with zeros and adds to some of its rows, or makes one
    of these rows alone (sparse)."""
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
    sparse = bool(node.seen.arguments.get("sparse"))
    kind = ("sparse_" if sparse else "dense_") if name == "embedding" else ""
    yield operator(
        "backward", "embedding", f"{name}_{kind}backward", shape,
        (None if sparse else table, out, out, read_too), out.dtype, more=_where(out, more),
        launches=formulas.embedding_backward_launches(shape[0]),
    )  # fmt: skip


def _where(out: Tensor, more: tuple[float, float]) -> tuple[float, float]:
    return (sum(more), 0.0) if out.grows else (0.0, sum(more))


@cache
def snake(name: str) -> str:
    """`max_pool2d_with_indices` for MaxPool2DWithIndices."""
    made = []
    for position, letter in enumerate(name):
        before = name[position - 1] if position else ""
        after_dimension = before == "D" and position > 1 and name[position - 2].isdigit()
        if letter.isupper() and (before.islower() or after_dimension):
            made.append("_")
        made.append(letter.lower())
    return "".join(made)


RULES: dict[str, Rule] = {
    **{name: product(place) for name, place in formulas.PRODUCTS.items()},
    **dict.fromkeys(formulas.CONVOLUTIONS, convolution),
    **dict.fromkeys(formulas.RECURRENT, recurrent),
    **dict.fromkeys(formulas.ATTENTION, attention),
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
}  # fmt: skip
"""The rules by the name of the operation."""
