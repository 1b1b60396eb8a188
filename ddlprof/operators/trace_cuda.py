"""What would run on CUDA instead of what torch does on the CPU: fused kernels, and the types that autocast chooses.

Fake tensors are on the CPU, as torch without CUDA has no others. Operators that torch composes differently on CUDA
(attention, dropout, recurrent layers, RMS norm) are registered anew while a step is traced. Autocast also has other
rules on CUDA: softmax, norms and losses are in fp32 ("CUDA Ops that can autocast to float32", torch's page on automatic
mixed precision).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ddlprof.model.operators import BACKWARD, CAUSAL
from ddlprof.operators.formulas import fused_attention_flops, recurrent_flops, rows_and_columns
from ddlprof.operators.trace_operators import piece
from ddlprof.operators.trace_recorder import OperatorTracer
from ddlprof.torch_private import aten, fake

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@contextlib.contextmanager
def cuda_operators(recorder: OperatorTracer) -> Iterator[None]:
    """A context in which operators are those of CUDA."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it fuses operators where no gradient is needed
    try:
        library.impl("scaled_dot_product_attention", _attention(recorder), "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        if hasattr(torch.ops.aten, aten.FUSED_RMS_NORM):  # torch 2.8 and later
            library.impl("rms_norm", _rms_norm(recorder), "AutogradCPU")
        for name in _GATES:
            library.impl(f"{name}.input", _recurrent(recorder, name), "AutogradCPU")
            library.impl(f"{name}.data", _packed(recorder, name), "AutogradCPU")
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        aten.take_back(library)


def _dropout(x: Any, p: float, train: bool) -> Any:
    import torch

    if not train or p == 0:
        return x
    if p == 1:
        return x * 0
    return torch.native_dropout(x, p, True)[0]


def attention_kernel(q: Any, k: Any, v: Any, mask: Any) -> str | None:
    """The fused kernel that CUDA uses, by torch's own conditions for Ampere and later; None: single operators."""
    import torch

    cuda = torch.backends.cuda
    if q.dim() != 4 or (mask is not None and mask.requires_grad) or 0 in (*q.shape, *k.shape):
        return None
    width, half = q.shape[-1], q.dtype in (torch.float16, torch.bfloat16)
    same_width = width == k.shape[-1] == v.shape[-1]
    if half and mask is None and same_width and width <= 256 and cuda.flash_sdp_enabled():
        return "flash"
    aligned = all(size % (8 if half else 4) == 0 for size in (width, v.shape[-1]))
    same_heads = q.shape[1] == k.shape[1] == v.shape[1]
    if aligned and same_heads and q.dtype != torch.float64 and cuda.mem_efficient_sdp_enabled():
        return "efficient"
    return None


def _attention(recorder: OperatorTracer) -> Callable[..., Any]:
    import torch

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, name: str) -> Any:
            out = v.new_empty((*q.shape[:-1], v.shape[-1]))
            sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
            ctx.save_for_backward(q, k, v, mask, out, sums)
            ctx.name = name
            reads = [q, k, v] if mask is None else [q, k, v, mask]
            recorder.add(piece("attention", name, q.dtype, _sizes(q, k), reads, [out, sums], _flops(q, k, v, name)[0]))
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            q, k, v, mask, out, sums = ctx.saved_tensors
            found = [torch.empty_like(tensor) for tensor in (q, k, v)]
            reads = [grads[0], q, k, v, out, sums] + ([] if mask is None else [mask])
            name, flops = ctx.name + BACKWARD, _flops(q, k, v, ctx.name)[1]
            # Three launches: the kernel, the sums of rows before it, and a cast of one gradient after it.
            recorder.add(piece("attention", name, q.dtype, _sizes(q, k), reads, found, flops, 3.0))
            return (*found, None, None)

    def attention(
        q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        kernel = attention_kernel(q, k, v, attn_mask)
        if kernel is None:
            parts = fake.attention_in_parts(torch)
            extra = {"enable_gqa": True} if enable_gqa else {}
            return parts(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, **extra)[0]
        name = f"scaled_dot_product_{kernel}_attention" + CAUSAL * is_causal
        return Fused.apply(q, k, v, attn_mask, name)  # type: ignore[no-untyped-call]

    return attention


def _sizes(q: Any, k: Any) -> tuple[int, ...]:
    return q.shape[0] * q.shape[1], q.shape[2], k.shape[2], q.shape[3]


def _flops(q: Any, k: Any, v: Any, name: str) -> tuple[float, float]:
    heads, queries, keys, width = (int(size) for size in _sizes(q, k))
    return fused_attention_flops(heads, queries, keys, width, int(v.shape[-1]), causal=CAUSAL in name)


def _rms_norm(recorder: OperatorTracer) -> Callable[..., Any]:
    import torch

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, columns: int) -> Any:
            out, scale = torch.empty_like(x), x.new_empty((x.numel() // columns,), dtype=torch.float32)
            ctx.save_for_backward(x, weight, scale)
            ctx.columns = columns
            reads = [x] if weight is None else [x, weight]
            shape = rows_and_columns(x.numel(), columns)
            recorder.add(piece("normalization", "fused_rms_norm", x.dtype, shape, reads, [out, scale], 0.0))
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            x, weight, scale = ctx.saved_tensors
            found = [torch.empty_like(x)] + ([] if weight is None else [torch.empty_like(weight)])
            reads = [grads[0], x, scale] + ([] if weight is None else [weight])
            shape = rows_and_columns(x.numel(), ctx.columns)
            name = "fused_rms_norm_backward"
            recorder.add(piece("normalization", name, x.dtype, shape, reads, found, 0.0, float(len(found))))
            return (*found, None) if weight is not None else (found[0], None, None)

    def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        columns = 1
        for size in normalized_shape:
            columns *= size
        return Fused.apply(x, weight, columns)  # type: ignore[no-untyped-call]

    return rms_norm


def _recurrent(recorder: OperatorTracer, name: str) -> Callable[..., Any]:
    def run(
        x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        batch, steps = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
        states = list(hx) if name == "lstm" else [hx]
        directions = 2 if bidirectional else 1
        width = states[0].shape[-1] * directions
        shape = (batch, steps, width) if batch_first else (steps, batch, width)
        return _through_time(recorder, name, x, states, list(params), shape, (steps, batch, num_layers * directions))

    return run


def _packed(recorder: OperatorTracer, name: str) -> Callable[..., Any]:
    def run(
        data: Any, batch_sizes: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        states = list(hx) if name == "lstm" else [hx]
        directions = 2 if bidirectional else 1
        steps = batch_sizes.shape[0]
        shape = (data.shape[0], states[0].shape[-1] * directions)
        sizes = (steps, max(1, data.shape[0] // max(1, steps)), num_layers * directions)
        return _through_time(recorder, name, data, states, list(params), shape, sizes)

    return run


def _through_time(
    recorder: OperatorTracer, name: str, x: Any, states: list[Any], params: list[Any], shape: tuple[int, ...],
    sizes: tuple[int, int, int],
) -> Any:  # fmt: skip
    """One call of cuDNN for all time steps. The gates of all layers are saved for backward."""
    import torch

    steps, batch, layers = sizes
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    flops = recurrent_flops(steps * batch, [each.numel() for each in params if each.dim() == 2])
    described = (steps, batch, states[0].shape[-1], layers)
    once = float(layers * (1 + 2 * steps))

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, *others: Any) -> Any:
            out = x.new_empty(shape, dtype=dtype)
            last = [state.new_empty(state.shape, dtype=dtype) for state in others[: len(states)]]
            gates = x.new_empty((steps * batch * layers * (_GATES[name] + 1) * described[2],), dtype=dtype)
            ctx.save_for_backward(x, *others, gates, out)
            writes = [out, *last, gates]
            recorder.add(piece("recurrent", name, dtype, described, [x, *others], writes, flops.forward, once))
            return (out, *last)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            *operands, gates, out = ctx.saved_tensors
            found = [torch.empty_like(tensor) if tensor.requires_grad else None for tensor in operands]
            reads, writes = [*operands, gates, out, grads[0]], [each for each in found if each is not None]
            backward = f"{name}_backward"
            recorder.add(piece("recurrent", backward, dtype, described, reads, writes, flops.backward, 2 * once))
            return tuple(found)

    result = Fused.apply(x, *states, *params)  # type: ignore[no-untyped-call]
    return tuple(result)


def _words(text: str) -> list[str]:
    return text.split()


_TO_FP32 = _words(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus layer_norm "
    "group_norm rms_norm pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar nll_loss nll_loss2d nll_loss_nd "
    "cosine_similarity poisson_nll_loss cosine_embedding_loss hinge_embedding_loss kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss "
    "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp "
    "norm.Scalar norm.ScalarOpt_dim"
)
_RESULT_IN_FP32 = _words("softmax.int log_softmax.int sum sum.dim_IntList prod prod.dim_int cumsum cumprod")
"""Operators that take the type of their result as an argument, so that they contain the cast."""


@contextlib.contextmanager
def cuda_autocast(dtype: Any) -> Iterator[None]:
    """Autocast to `dtype` with the rules of CUDA, for tensors on the CPU."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    try:
        for names, rule in ((_TO_FP32, _upcast), (_RESULT_IN_FP32, _with_dtype)):
            for name in names:
                if not fake.has_autocast(torch, f"aten::{name}"):
                    with contextlib.suppress(RuntimeError):  # not in this version of torch
                        library.impl(name, rule(name), fake.AUTOCAST)
        with torch.autocast("cpu", dtype=dtype):
            yield
    finally:
        aten.take_back(library)


def _upcast(name: str) -> Callable[..., Any]:
    import torch

    operator = _operator(name)

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16):
            return value.to(torch.float32)
        return value

    def run(*args: Any, **kwargs: Any) -> Any:
        with fake.outside_autocast(torch):
            return operator(*map(cast, args), **{key: cast(value) for key, value in kwargs.items()})

    return run


def _with_dtype(name: str) -> Callable[..., Any]:
    import torch

    operator = _operator(name)

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        half = isinstance(x, torch.Tensor) and x.dtype in (torch.bfloat16, torch.float16)
        with fake.outside_autocast(torch):
            if not half or kwargs.get("dtype") is not None or any(isinstance(each, torch.dtype) for each in args):
                return operator(x, *args, **kwargs)
            return operator(x, *args, **{**kwargs, "dtype": torch.float32})

    return run


def _operator(name: str) -> Any:
    import torch

    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")
