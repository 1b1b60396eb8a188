"""Describes an operator of aten on fake tensors: kind, sizes, FLOPs, launches, and what it reads and writes.

Sizes are those of `ddlprof.model.operators.KINDS`. `torch_private.aten` has names for what torch's own tags do not
tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ddlprof.model.operators import BY_PLACE
from ddlprof.operators import formulas
from ddlprof.operators.formulas import short_dtype
from ddlprof.torch_private import aten


class Access(NamedTuple):
    """A tensor that an operator reads or writes, and the bytes of that."""

    storage: int
    """The number of its storage, as `Storages` gives it."""
    bytes: float


@dataclass
class OperatorCall:
    """One call of an operator. Its fields are those of `ddlprof.model.operators.Operator`."""

    phase: str
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    launches: float
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    by_rows: bool = False
    """Whether each result needs only one row of elements: a reduction over the last sizes, or batch normalisation with
    known sums."""
    fused_bytes: float | None = None
    fused_launches: float | None = None

    @property
    def bytes(self) -> float:
        """All bytes read and written."""
        return sum(access.bytes for access in self.reads) + sum(access.bytes for access in self.writes)


@dataclass
class OperatorWork:
    """A piece of work on a GPU. Most operators are one piece; some launch several different ones."""

    kind: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    launches: float
    reads: list[tuple[Any, float]]
    """Tensors, and the bytes read from each."""
    writes: list[tuple[Any, float]]
    by_rows: bool = False


_COPIES = ("clone", "copy", "contiguous")


def type_name(dtype: Any) -> str:
    """The short name of a torch data type: fp32, bf16, fp8, int64, ..."""
    return short_dtype(str(dtype).removeprefix("torch."))


def touched_bytes(tensor: Any) -> float:
    """The bytes of a tensor's own elements. Those of an expanded tensor count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return float(elements * tensor.element_size())


def whole_bytes(tensor: Any) -> float:
    """The bytes that a tensor would have in memory without gaps or shared elements."""
    return float(tensor.numel() * tensor.element_size())


def piece(
    kind: str, name: str, dtype: Any, shape: Iterable[int], reads: Iterable[Any], writes: Iterable[Any],
    flops: float, launches: float = 1.0,
) -> OperatorWork:  # fmt: skip
    """An operator that reads and writes whole tensors."""
    sizes = tuple(int(size) for size in shape)
    return OperatorWork(
        kind, name, type_name(dtype), sizes, float(flops), launches,
        [(tensor, whole_bytes(tensor)) for tensor in reads],
        [(tensor, whole_bytes(tensor)) for tensor in writes],
    )  # fmt: skip


@dataclass
class DispatchedOperator:
    """An operator as torch dispatched it, with its tensors."""

    name: str
    """Its name in torch, without the trailing underscore of in-place operators."""
    called: str
    args: tuple[Any, ...]
    inputs: list[Any]
    """The tensors among its arguments, each once."""
    outputs: list[Any]
    """The new tensors that it returns."""
    written: list[Any]
    """The tensors among its arguments to which it writes."""
    pointwise: bool
    reduces: bool


def pieces(seen: DispatchedOperator) -> list[OperatorWork]:
    """The pieces of work of an operator. Raises any error if its arguments are not as expected."""
    special = _SPECIAL.get(seen.name)
    if special is not None:
        return special(seen)
    if seen.name in aten.WRITE_ONLY or seen.name.startswith(("new_", "rand")) or seen.name.endswith("like"):
        return [_piece(seen, "elementwise", (_result(seen).numel(),), reads=[])]
    for kind, names in aten.KINDS.items():
        if seen.name in names:
            launches = 1 if _has_its_sums(seen) else aten.LAUNCHES.get(seen.name, 1)
            return [_piece(seen, kind, _SHAPES[kind](seen), launches=launches)]
    if seen.pointwise or seen.name in aten.POINTWISE:
        return [_piece(seen, "elementwise", (_result(seen).numel(),))]
    if seen.reduces:
        return [_piece(seen, "reduction", _reduction_shape(seen))]
    total = sum(tensor.numel() for tensor in seen.outputs + seen.written)
    return [_piece(seen, "other", (total,), launches=aten.LAUNCHES.get(seen.name, 1))]


def _piece(
    seen: DispatchedOperator, kind: str, shape: tuple[int, ...], flops: float = 0.0, launches: float = 1.0,
    name: str | None = None,
    reads: list[tuple[Any, float]] | None = None, writes: list[tuple[Any, float]] | None = None, dtype: Any = None,
) -> OperatorWork:  # fmt: skip
    if reads is None:
        reads = [(tensor, touched_bytes(tensor)) for tensor in seen.inputs if seen.name not in aten.OVERWRITES
                 or not any(tensor is each for each in seen.written)]  # fmt: skip
    if writes is None:
        writes = [(tensor, touched_bytes(tensor)) for tensor in seen.outputs + seen.written]
    computed, sizes = type_name(dtype or _computed_in(seen)), tuple(map(int, shape))
    by_rows = (kind == "reduction" and name is None and _by_rows(seen)) or _has_its_sums(seen)
    suffix = BY_PLACE if kind in ("elementwise", "copy") and _by_place(seen) else ""
    called = (name or seen.called) + suffix
    return OperatorWork(kind, called, computed, sizes, float(flops), launches, reads, writes, by_rows)


def _by_place(seen: DispatchedOperator) -> bool:
    """Whether its kernel cannot load several elements at once (`gpu_kernel_impl` in CUDALoops.cuh of PyTorch): an
    operand has another size, order or type than the result. Numbers are no operands. Left out are kernels of their own
    (concatenations, padding, dropout), and casts, which their type tells."""
    if not (seen.pointwise or seen.name in aten.POINTWISE or seen.name in _COPIES) or seen.name in aten.OWN_KERNELS:
        return False
    result = _result(seen)
    operands = [tensor for tensor in seen.inputs if tensor.dim() and tensor is not result]
    if any(tensor.shape != result.shape or tensor.stride() != result.stride() for tensor in operands):
        return True
    # what compares gives a bool of its own kernel
    numbers = [tensor for tensor in operands if tensor.is_floating_point() and result.is_floating_point()]
    return any(tensor.dtype != result.dtype for tensor in numbers)


def _has_its_sums(seen: DispatchedOperator) -> bool:
    """Whether it is batch normalisation in evaluation, which uses known sums and is elementwise."""
    if "no_training" in seen.name:
        return True
    return seen.name == "native_batch_norm" and len(seen.args) > 5 and seen.args[5] is False


def _by_rows(seen: DispatchedOperator) -> bool:
    """Whether it is a reduction over the last sizes only."""
    x = seen.inputs[0]
    axes = seen.args[1] if len(seen.args) > 1 else None
    axes = [axes] if isinstance(axes, int) and not isinstance(axes, bool) else axes
    if not isinstance(axes, (list, tuple)) or not axes or not all(isinstance(axis, int) for axis in axes):
        return False
    places = {axis % x.dim() for axis in axes} if x.dim() else set()
    return len(places) < x.dim() and places == set(range(x.dim() - len(places), x.dim()))


def _computed_in(seen: DispatchedOperator) -> Any:
    """The data type of the first floating-point result, else of the first such operand, else of the first tensor."""
    results, operands = seen.outputs + seen.written, seen.inputs
    floating = (tensor for tensor in [*results, *operands] if tensor.is_floating_point() or tensor.is_complex())
    return next(floating, [*results, *operands][0]).dtype


def _result(seen: DispatchedOperator) -> Any:
    return (seen.outputs + seen.written)[0]


def _normalization_shape(seen: DispatchedOperator) -> tuple[int, ...]:
    backward = "backward" in seen.name
    x = seen.args[1 if backward else 0]
    if "layer_norm" in seen.name or "rms_norm" in seen.name:
        return formulas.rows_and_columns(x.numel(), prod(seen.args[2 if backward else 1]))
    if "group_norm" in seen.name:
        first = 5 if backward else 3
        samples, channels, pixels, groups = seen.args[first : first + 4]
        return formulas.group_norm_shape(samples, groups, samples * channels * pixels)
    return formulas.batch_norm_shape(x.shape)


def _softmax_shape(seen: DispatchedOperator) -> tuple[int, ...]:
    x = seen.args[0]
    axis = seen.args[2 if "backward" in seen.name else 1]
    axis = axis[0] if isinstance(axis, (list, tuple)) else axis
    return formulas.rows_and_columns(x.numel(), x.shape[axis] if x.dim() else 1)


def _reduction_shape(seen: DispatchedOperator) -> tuple[int, ...]:
    return seen.inputs[0].numel(), _result(seen).numel()


def _pooling_shape(seen: DispatchedOperator) -> tuple[int, ...]:
    result, x = _result(seen), seen.inputs[0]
    if "upsample" in seen.name:
        window = {"nearest": 1, "bilinear": 4, "bicubic": 16, "linear": 2, "trilinear": 8}
        return result.numel(), next((size for name, size in window.items() if name in seen.name), 4)
    sizes = seen.args[2 if "backward" in seen.name else 1] if len(seen.args) > 1 else None
    if "adaptive" not in seen.name and isinstance(sizes, (list, tuple)):
        return result.numel(), prod(sizes) ** (2 if len(sizes) == 1 and "2d" in seen.name else 1)
    smaller, larger = sorted((result.numel(), x.numel()))
    return result.numel(), formulas.pooling_window(larger, smaller)


_SHAPES: dict[str, Callable[[DispatchedOperator], tuple[int, ...]]] = {
    "normalization": _normalization_shape,
    "softmax": _softmax_shape,
    "reduction": _reduction_shape,
    "pooling": _pooling_shape,
    "copy": lambda seen: (_result(seen).numel(),),
}


def _product(seen: DispatchedOperator) -> list[OperatorWork]:
    place = aten.OPERANDS[seen.name]
    a, b = seen.args[place], seen.args[place + 1]
    if seen.name == aten.GROUPED_PRODUCT and a.dim() == 2 and b.dim() == 3:  # each row is multiplied with one matrix
        batch, m, k, n = b.shape[0], a.shape[0] // max(1, b.shape[0]), a.shape[1], b.shape[2]
    elif seen.name == aten.GROUPED_PRODUCT and a.dim() == 2:  # gradients of weights: each sums over its rows
        batch = _result(seen).shape[0]
        m, k, n = a.shape[0], a.shape[1] // max(1, batch), b.shape[1]
    else:
        batch = a.shape[0] if a.dim() == 3 else 1
        m = a.shape[-2] if a.dim() > 1 else 1
        k, n = a.shape[-1], b.shape[-1] if b.dim() > 1 else 1
    reads = [(a, whole_bytes(a)), (b, whole_bytes(b))]
    reads += [(t, touched_bytes(t)) for t in seen.inputs if t is not a and t is not b]
    shape = (batch, m, n, k)
    return [_piece(seen, "product", shape, formulas.product_flops(*shape), reads=reads, dtype=a.dtype)]


def _convolution(seen: DispatchedOperator) -> list[OperatorWork]:
    x, weight = seen.args[0], seen.args[1]
    transposed, groups = seen.args[6], seen.args[8]
    sizes = formulas.convolution(x.shape, weight.shape, _result(seen).shape, groups, transposed)
    return [_piece(seen, "convolution", sizes.forward, sizes.flops, dtype=x.dtype)]


def _convolution_backward(seen: DispatchedOperator) -> list[OperatorWork]:
    grad, x, weight = seen.args[:3]
    transposed, groups, wanted = seen.args[7], seen.args[9], seen.args[10]
    sizes = formulas.convolution(x.shape, weight.shape, grad.shape, groups, transposed)
    outputs = iter(seen.outputs)
    found = []
    for name, asked, other, shape in (
        ("input", wanted[0], weight, sizes.input_gradient),
        ("weight", wanted[1], x, sizes.forward),
    ):
        if asked:
            result = next(outputs)
            found.append(_piece(
                seen, "convolution", shape, sizes.flops, name=f"convolution_backward_{name}", dtype=x.dtype,
                reads=[(grad, whole_bytes(grad)), (other, whole_bytes(other))], writes=[(result, whole_bytes(result))],
            ))  # fmt: skip
    if wanted[2]:
        bias = next(outputs)
        found.append(_piece(
            seen, "reduction", (grad.numel(), bias.numel()), name="convolution_backward_bias",
            reads=[(grad, touched_bytes(grad))], writes=[(bias, whole_bytes(bias))],
        ))  # fmt: skip
    return found


def _embedding(seen: DispatchedOperator) -> list[OperatorWork]:
    index, result = seen.args[1], _result(seen)
    looked_up = [(seen.args[0], whole_bytes(result)), (index, touched_bytes(index))]
    return [_piece(seen, "embedding", (index.numel(), seen.args[0].shape[-1]), reads=looked_up)]


def _embedding_backward(seen: DispatchedOperator) -> list[OperatorWork]:
    grad, index = seen.args[:2]
    launches = formulas.embedding_backward_launches(index.numel())
    return [_piece(seen, "embedding", (index.numel(), grad.shape[-1]), launches=float(launches))]


def _lookup(seen: DispatchedOperator) -> list[OperatorWork]:
    """Gathering: reads as many bytes as it returns, and the indices."""
    source, result = seen.inputs[0], _result(seen)
    indices = seen.inputs[1:]
    width = result.shape[-1] if seen.name == "index" and len(seen.args[1]) < source.dim() and result.dim() else 1
    if seen.name == "index_select" and seen.args[1] not in (-1, source.dim() - 1):
        width = source.shape[-1]
    reads = [(source, whole_bytes(result)), *((index, touched_bytes(index)) for index in indices)]
    return [_piece(seen, "embedding", formulas.rows_and_columns(result.numel(), width), reads=reads)]


def _scatter(seen: DispatchedOperator) -> list[OperatorWork]:
    """Writing to places: reads and writes as many bytes as it is given. A new result is copied first."""
    base, result, rest = seen.args[0], _result(seen), seen.inputs[1:]
    given = max((whole_bytes(tensor) for tensor in rest if tensor.dtype == base.dtype), default=0.0)
    given = given or max((tensor.numel() * base.element_size() for tensor in rest), default=0.0)
    whole = whole_bytes(base) if seen.outputs else 0.0
    elements = int(given // base.element_size())
    width = base.shape[-1] if seen.name in ("index_put", "index_add", "index_copy") and base.dim() > 1 else 1
    accumulates = seen.name in ("index_add", "scatter_add") or (len(seen.args) > 3 and seen.args[3] is True)
    added = 2.0 if accumulates else 1.0
    return [_piece(
        seen, "embedding", formulas.rows_and_columns(elements, width), launches=2.0 if seen.outputs else 1.0,
        reads=[(base, whole + (added - 1) * given), *((tensor, touched_bytes(tensor)) for tensor in rest)],
        writes=[(result, whole + given)],
    )]  # fmt: skip


def _nll(seen: DispatchedOperator) -> list[OperatorWork]:
    x = seen.args[0]
    columns = x.shape[1] if x.dim() > 1 else x.shape[0]
    rows, target = x.numel() // columns, seen.args[1]
    reads = [(x, float(rows * x.element_size())), (target, touched_bytes(target))]
    return [_piece(seen, "softmax", (rows, columns), reads=reads)]


def _nll_backward(seen: DispatchedOperator) -> list[OperatorWork]:
    x, target = seen.args[1], seen.args[2]
    columns = x.shape[1] if x.dim() > 1 else x.shape[0]
    reads = [(target, touched_bytes(target))]
    return [_piece(seen, "softmax", formulas.rows_and_columns(x.numel(), columns), launches=2.0, reads=reads)]


def _pool_backward(seen: DispatchedOperator) -> list[OperatorWork]:
    """The backward of pooling, which uses indices and does not read the pooled tensor."""
    pooled = seen.args[1]
    reads = [(tensor, touched_bytes(tensor)) for tensor in seen.inputs if tensor is not pooled]
    return [_piece(seen, "pooling", _pooling_shape(seen), launches=2.0, reads=reads)]


_SPECIAL: dict[str, Callable[[DispatchedOperator], list[OperatorWork]]] = {
    **dict.fromkeys(aten.OPERANDS, _product),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(aten.LOOKUPS, _lookup),
    **dict.fromkeys(aten.SCATTERS, _scatter),
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "nll_loss2d_backward": _nll_backward,
    "max_pool2d_with_indices_backward": _pool_backward,
}  # fmt: skip
