"""CUDA's rules of autocast on tensors of the CPU, whose own rules differ: softmax, norms and losses in fp32.

Source: "CUDA Ops that can autocast to float32", torch's page on automatic mixed precision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ddlprof.torch_private import aten, fake


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
"""They take the type of their result as an argument: the cast is inside."""


@contextlib.contextmanager
def cuda_autocast(dtype: Any) -> Iterator[None]:
    """Autocast to `dtype` with the rules of CUDA, for tensors on the CPU."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    try:
        for names, rule in ((_TO_FP32, _upcast), (_RESULT_IN_FP32, _with_dtype)):
            for name in names:
                if not fake.has_autocast(torch, f"aten::{name}"):
                    with contextlib.suppress(RuntimeError):  # not in this torch
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
