"""The cost of simpler operations by name: elementwise operations, sums, pooling, copies and views.

For backward the tables give how many tensors of the output's size each call reads and writes, according to torch's
`derivatives.yaml` and `FunctionsManual.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ddlprof.model.operators import Operator
from ddlprof.operators.formulas import pooling_window
from ddlprof.operators.graph_flow import Node, Tensor, words
from ddlprof.operators.graph_rules import RULES, Rule, like, operator, reduction, snake

Calls = tuple[int, ...]
"""The number of tensors that each call of backward reads and writes."""

_UNARY: dict[str, Calls] = {
    **dict.fromkeys(
        words(
            "Relu Gelu Silu Sigmoid Tanh LeakyRelu Elu Celu Hardswish Hardsigmoid Hardtanh Softplus Mish Threshold"
            " LogSigmoid Hardshrink Softshrink Exp Log Erfinv RreluWithNoise Logit"
        ),
        (3,),
    ),
    **dict.fromkeys(words("Neg Sgn Sign Floor Ceil Round Conj"), (2,)),
    "Abs": (2, 3), "Sqrt": (2, 3), "Rsqrt": (2, 2, 3), "Reciprocal": (2, 2, 3), "Sin": (2, 3), "Cos": (2, 2, 3),
    "Erf": (2, 2, 2, 3), "Expm1": (2, 3), "Log1P": (2, 3), "Log2": (2, 3), "Exp2": (2, 3), "Pow": (2, 2, 3),
    "Clamp": (2, 2, 2, 3), "ClampMin": (2, 3), "ClampMax": (2, 3), "MaskedFill": (2,), "NanToNum": (2, 3),
    "Glu": (3,), "PreluKernel": (4,), "Fill": (1,), "Zero": (1,), "Bernoulli": (1,),
}  # fmt: skip
_BINARY: dict[str, tuple[Calls, ...]] = {
    "Add": ((), ()), "Sub": ((), (2,)), "Rsub": ((2,), ()), "Mul": ((3,), (3,)), "Div": ((3,), (3, 3, 2, 3)),
    "Where": ((3,), (3,), (3,)), "Maximum": ((3, 2, 3), (3, 2, 3)), "Minimum": ((3, 2, 3), (3, 2, 3)),
    "Addcmul": ((), (3, 2), (3, 2)), "Addcdiv": ((), (3,), (3, 3, 3)), "Lerp": ((2,), (2,), (3, 3)),
    "Atan2": ((2, 2, 3, 3), (3, 3)), "Remainder": ((), (3, 3)), "Fmod": ((), (3, 3)),
}  # fmt: skip
"""The calls of backward for each argument."""
_LOSSES: dict[str, Calls] = {
    "MseLoss": (4,), "SmoothL1Loss": (4,), "HuberLoss": (4,), "BinaryCrossEntropy": (4,),
    "BinaryCrossEntropyWithLogits": (2, 3, 3), "SoftMarginLoss": (4,), "KlDiv": (3,),
}  # fmt: skip
"""The calls of backward, in tensors of the input's size."""
_REDUCTIONS: dict[str, Calls] = {
    "Sum": (), "Nansum": (), "Mean": (1,), "Amax": (2, 2, 3), "Amin": (2, 2, 3), "Max": (2,), "Min": (2,),
    "Var": (2, 3), "Std": (2, 3), "VarMean": (2, 3), "StdMean": (2, 3), "LinalgVectorNorm": (2, 3), "Norm": (2, 3),
    "Logsumexp": (2, 2, 3), "Prod": (2, 3), "Median": (2,), "Kthvalue": (2,), "Topk": (2,), "Sort": (2,),
    "Cumsum": (2, 2, 2), "Cumprod": (2, 3, 2, 3), "Argmax": (),
}  # fmt: skip
"""The calls of backward, in tensors of the input's size."""
_VIEWS: dict[str, Calls] = {
    **dict.fromkeys(
        words(
            "View UnsafeView ReshapeAlias T Transpose Permute Squeeze Unsqueeze Expand Alias Detach ViewAsReal"
            " ViewAsComplex NestedViewFromBuffer ReshapeCopy Real Imag"
        ),
        (),
    ),
    **dict.fromkeys(words("Select Slice Diagonal AsStrided Narrow"), (1,)),
    **dict.fromkeys(words("Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes Unbind Chunk Unfold"), (2,)),
}  # fmt: skip
"""Operations without a launch in forward. Backward reads and writes tensors of the viewed tensor's size."""
_RESHAPES = frozenset({"View", "UnsafeView", "ReshapeAlias"})
"""Operations whose gradient is copied if its elements come in another order."""
_COPIES: dict[str, Calls] = {
    "Clone": (), "ToCopy": (2,), "Copy": (), "CopySlices": (2,), "Cat": (), "Stack": (), "Contiguous": (), "Roll": (2,),
    "Flip": (2,), "Rot90": (2,), "ConstantPadNd": (2,), "Repeat": (), "Tril": (2,), "Triu": (2,), "PixelShuffle": (2,),
    "PixelUnshuffle": (2,), "ReflectionPad1D": (2,), "ReflectionPad2D": (2,), "ReplicationPad1D": (2,),
    "ReplicationPad2D": (2,), "Im2Col": (2,), "Col2Im": (2,), "SliceScatter": (2,), "SelectScatter": (2,),
    "ChannelShuffle": (2,), "NarrowCopy": (2,), "DiagEmbed": (2,),
}  # fmt: skip
_POOLING = words(
    "MaxPool2DWithIndices MaxPool3DWithIndices AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D MaxPool2D"
    " AdaptiveMaxPool2D AdaptiveMaxPool3D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleBilinear2D"
    " UpsampleNearestExact2D UpsampleBicubic2D UpsampleLinear1D UpsampleTrilinear3D GridSampler2D GridSampler3D"
    " UpsampleBilinear2DAa MkldnnMaxPool2D MkldnnAdaptiveAvgPool2D MaxUnpool2D FractionalMaxPool2D"
)
_SCATTERS = words("Scatter ScatterAdd ScatterReduce IndexAdd IndexCopy IndexPut IndexPutImpl MaskedScatter")
_INDEX_BYTES = 8


def _spread(node: Node) -> Iterator[Operator]:
    """Sums for the gradients of arguments that were broadcast."""
    for source in node.known:
        if source.elements < node.out.elements:
            yield reduction("backward", "sum", node.out, source)


def _calls(name: str, kind: str, calls: Calls, of: Tensor, shape: tuple[int, ...]) -> Iterator[Operator]:
    for tensors in calls:
        yield operator("backward", kind, f"{name}_backward", shape, (of,) * tensors, of.dtype)


def _forward(node: Node, kind: str, shape: tuple[int, ...], *more: Tensor | None) -> Operator:
    return operator("forward", kind, snake(node.name), shape, (*node.sources, *more, node.out), node.out.dtype)


def _unary(calls: Calls) -> Rule:
    def rule(node: Node) -> Iterator[Operator]:
        shape = (node.out.elements,)
        yield _forward(node, "elementwise", shape)
        yield from _calls(snake(node.name), "elementwise", calls, node.out, shape)
        yield from _spread(node)

    return rule


def _binary(calls: tuple[Calls, ...]) -> Rule:
    def rule(node: Node) -> Iterator[Operator]:
        out, name, shape = node.out, snake(node.name), (node.out.elements,)
        others = [saved for key in ("other", "condition") if (saved := node.saved(key)) is not None]
        other = next((each for each in others if None in node.sources[:2] and each.elements > 1), None)
        if name == "mul" and other is not None and other.shape == out.shape and node.source(0) is not None:
            yield from dropout(node)
            return
        yield _forward(node, "elementwise", shape, other)
        for position, source in enumerate(node.sources):
            if source is None or position >= len(calls):
                continue
            scalar = len(node.known) == 1 and other is None  # the other argument is a number
            for tensors in calls[position]:
                operands = (out,) * (2 if scalar else tensors)
                yield operator("backward", "elementwise", f"{name}_backward", shape, operands, out.dtype)
        yield from _spread(node)

    return rule


def dropout(node: Node) -> Iterator[Operator]:
    """Dropout: one kernel on GPUs. On CPUs torch uses a product with random numbers, which counts the same."""
    out, shape = node.out, (node.out.elements,)
    mask = like(out)._replace(dtype="bool")
    yield operator("forward", "elementwise", "native_dropout", shape, (out, out, mask), out.dtype)
    yield operator("backward", "elementwise", "native_dropout_backward", shape, (out, out, mask), out.dtype)


def _loss(calls: Calls) -> Rule:
    def rule(node: Node) -> Iterator[Operator]:
        scores, name = node.known[0], snake(node.name)
        shape = (scores.elements, node.out.elements)
        yield operator("forward", "reduction", name, shape, (scores, scores, node.out), scores.dtype)
        yield from _calls(name, "elementwise", calls, scores, (scores.elements,))

    return rule


def _reduction(calls: Calls) -> Rule:
    def rule(node: Node) -> Iterator[Operator]:
        whole, name = node.known[0], snake(node.name)
        yield reduction("forward", name, whole, node.out)
        yield from _calls(name, "elementwise", calls, whole, (whole.elements,))

    return rule


def _view(calls: Calls) -> Rule:
    def rule(node: Node) -> Iterator[Operator]:
        whole, name = node.known[0], snake(node.name)
        if calls and (calls != (1,) or whole.elements > node.out.elements):
            parts = (whole, whole) if calls == (2,) else (whole, node.out, node.out)
            yield operator(
                "backward", "copy", f"{name}_backward", (whole.elements,), parts, whole.dtype, launches=len(parts) - 1
            )
        elif node.permuted and node.name in _RESHAPES and whole.shape != node.out.shape:
            yield operator("backward", "copy", "clone", (whole.elements,), (whole, whole), whole.dtype)
        if node.name == "Expand" and whole.elements < node.out.elements:
            yield reduction("backward", "sum", node.out, whole)

    return rule


def _copy(calls: Calls) -> Rule:
    def rule(node: Node) -> Iterator[Operator]:
        out, name = node.out, snake(node.name)
        shape, source = (out.elements,), node.known[0] if node.name == "ToCopy" else like(out)
        yield operator("forward", "copy", name, shape, (source, out), out.dtype)
        for _ in calls:
            yield operator("backward", "copy", f"{name}_backward", shape, (out, source), out.dtype)
        if node.name == "Repeat":
            yield from _spread(node)

    return rule


def _pooling(node: Node) -> Iterator[Operator]:
    whole, out, name = node.known[0], node.out, snake(node.name)
    kernel = node.seen.arguments.get("kernel_size")
    window = prod(kernel) if kernel else pooling_window(whole.elements, out.elements)
    indices = like(out)._replace(dtype="int64") if "Max" in node.name else None
    shape = (out.elements, window)
    yield operator("forward", "pooling", name, shape, (whole, out, indices), out.dtype)
    input_too = whole if node.name.startswith("AvgPool") else None
    yield operator(
        "backward", "pooling", f"{name}_backward", shape, (out, indices, input_too, whole), out.dtype,
        launches=2 if indices is not None else 1,
    )  # fmt: skip


def _scatter(node: Node) -> Iterator[Operator]:
    """Writing values to places in a tensor."""
    out, name = node.out, snake(node.name)
    written = node.source(len(node.sources) - 1) or out
    width = written.shape[-1] if written.shape else 1
    shape = (written.elements // max(1, width), width)
    more = (float(_INDEX_BYTES * shape[0]), 0.0) if out.grows else (0.0, float(_INDEX_BYTES * shape[0]))
    yield operator("forward", "embedding", name, shape, (written, written, written), out.dtype, more=more)
    yield operator("backward", "embedding", f"{name}_backward", shape, (written, written), out.dtype, more=more)


def other(node: Node) -> Iterator[Operator]:
    """An operation without a rule: backward reads the gradients of its outputs and writes those of its arguments."""
    shape = (node.out.elements,)
    yield operator("forward", "other", snake(node.name), shape, (*node.sources, node.out), node.out.dtype)
    name = f"{snake(node.name)}_backward"
    yield operator("backward", "other", name, shape, (node.out, *node.sources, *node.sources), node.out.dtype)


ALL_RULES: dict[str, Rule] = {
    **RULES,
    **{name: _unary(calls) for name, calls in _UNARY.items()},
    **{name: _binary(calls) for name, calls in _BINARY.items()},
    **{name: _loss(calls) for name, calls in _LOSSES.items()},
    **{name: _reduction(calls) for name, calls in _REDUCTIONS.items()},
    **{name: _copy(calls) for name, calls in _COPIES.items()},
    **{name: _view(calls) for name, calls in _VIEWS.items()},
    **dict.fromkeys(("NativeDropout", "FusedDropout"), dropout),
    **dict.fromkeys(_POOLING, _pooling),
    **dict.fromkeys(_SCATTERS, _scatter),
}
"""The rule of each operation that has one."""
