"""What torch.func.vmap would compute otherwise than each model by itself: autocast, and whole attention.

vmap takes composite operators apart before autocast sees them, so a bias is added in single precision, and a softmax
stays in half precision. And it takes attention apart, or runs it once for each model. Here both are decided for the
whole operator, as for one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


@contextmanager
def mappable(device: torch.device) -> Iterator[None]:
    """A context in which functions of one model, which is on this device, can be mapped over all."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # kernels of whole encoder layers, which cannot be mapped
    try:
        with _AsOfOne(device.type):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _named(names: str) -> set[Any]:
    """The functions of these names in torch.nn.functional, in torch, and of tensors."""
    places = (functional, torch, Tensor)
    return {getattr(place, name) for place in places for name in names.split() if hasattr(place, name)}


_LOWER = _named(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d addmm addmv addbmm baddbmm prelu"
    " scaled_dot_product_attention"
)
_FULL = _named(
    "cross_entropy nll_loss binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss huber_loss kl_div"
    " poisson_nll_loss soft_margin_loss multi_margin_loss margin_ranking_loss cosine_embedding_loss"
    " hinge_embedding_loss triplet_margin_loss"
)
_FULL_ON_GPU = _named("softmax log_softmax softmin layer_norm group_norm rms_norm cosine_similarity")
"""Operators that torch takes apart and that autocast casts down or up, the last ones not on a CPU; see "Autocast Op
Reference" of torch.amp. It sees all others below vmap."""
_NORMS = _named("layer_norm group_norm rms_norm batch_norm instance_norm")
"""Operators whose result has the type of their input. Taken apart they would get that of their weights."""
_OF_BATCHES = _named("batch_norm instance_norm")
"""A CPU computes these in 16 bits with weights in 32 for one model, but not for many: then in 32 and cast back, as it
adds up in 32 anyway."""
HALVES = (torch.bfloat16, torch.float16)


class _AsOfOne(TorchFunctionMode):
    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LOWER or func in _FULL or func in _FULL_ON_GPU:
            args, kwargs = _cast(func, self._device, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func in _OF_BATCHES and self._device == "cpu" and args and args[0].dtype in HALVES:
            return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        if func in _NORMS:
            found = func(*args, **kwargs)
            return found.to(args[0].dtype) if args else found
        if type(func) is FunctionType and func.__globals__ is vars(functional):
            with self:  # it may call such operators itself
                return _unchecked(func)(*args, **kwargs)
        return func(*args, **kwargs)


@cache
def _unchecked(function: FunctionType) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not ask modes first whether they replace it."""
    asks = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    found = FunctionType(
        function.__code__, {**function.__globals__, **asks}, None, function.__defaults__, function.__closure__
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _cast(func: Any, device: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments in the type in which autocast would compute the function; as they are where it is off."""
    if not torch.is_autocast_enabled(device) or (func in _FULL_ON_GPU and device == "cpu"):
        return args, kwargs
    dtype = torch.get_autocast_dtype(device) if func in _LOWER else torch.float32

    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.dtype in (torch.float32, *HALVES) else value

    found: tuple[Any, Any] = pytree.tree_map_only(Tensor, cast, (args, kwargs))
    return found


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention` that maps to one call, with the models as further samples of the batch."""
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if enable_gqa:  # not in torch 2.4
        options["enable_gqa"] = enable_gqa
    return _Attention.apply(query, key, value, attn_mask, options)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """Torch chooses the kernel (flash, memory-efficient, single operators) by device, types and shapes, as ever."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Tensor:
        """Of tensors that are the same for all models, and so need no gradient."""
        return functional.scaled_dot_product_attention(query, key, value, mask, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Any:
        """Of all models; gradients are those of the operators called here."""
        models = info.batch_size
        query, key, value = (
            _first(each, dim, models) for each, dim in zip((query, key, value), in_dims[:3], strict=True)
        )
        dims, lead = query.dim(), torch.broadcast_shapes(*(each.shape[1:-3] for each in (query, key, value)))
        if mask is not None:
            mask = _aligned(mask, in_dims[3], models, dims)
        if dims <= 4:
            return functional.scaled_dot_product_attention(query, key, value, mask, **options), 0
        if mask is not None and mask.dim() == dims:
            mask = mask.expand(models, *lead, *mask.shape[-3:]).flatten(0, -4)
        query, key, value = (
            each.expand(models, *lead, *each.shape[-3:]).flatten(0, -4) for each in (query, key, value)
        )
        found = functional.scaled_dot_product_attention(query, key, value, mask, **options)
        return found.unflatten(0, (models, *lead)), 0


def _first(tensor: Tensor, dim: int | None, models: int) -> Tensor:
    """The tensor with a first dimension of all models."""
    return tensor.movedim(dim, 0) if dim is not None else tensor.expand(models, *tensor.shape)


def _aligned(mask: Tensor, dim: int | None, models: int, dims: int) -> Tensor:
    """A mask that broadcasts against tensors of `dims` dimensions, of which the first is that of the models.

    One that is the same for all models and samples stays as it is.
    """
    if dim is None and (mask.dim() < 4 or dims <= 4):
        return mask
    mask = _first(mask, dim, models)
    return mask.reshape(models, *([1] * (dims - mask.dim())), *mask.shape[1:])
