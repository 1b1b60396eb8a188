"""The optimizer's part of a step: fused, foreach (torch's default on CUDA), or one parameter after another."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ddlprof.operators.trace_operators import (
    Access,
    DispatchedOperator,
    OperatorCall,
    OperatorWork,
    piece,
    pieces,
    type_name,
    whole_bytes,
)
from ddlprof.torch_private import aten

_TENSORS_OF_A_LAUNCH = (110, 64, 48, 36, 30)
"""The most tensors of one launch of CUDA's multi_tensor_apply, with one to five lists."""
_BLOCKS_OF_A_LAUNCH = 320
_CHUNK = 65536
"""The number of elements of one block."""
A_STATE = 0.75
"""A number that optimizers get if they read the value of a state (updates so far, a running product) for which there
are no data."""
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_FREE_OF_READING = frozenset({f"{aten.FOREACH}copy", f"{aten.FOREACH}zero"})


def is_joint(name: str) -> bool:
    """Whether an operator processes lists of tensors in one call."""
    return name.startswith((aten.FOREACH, aten.FUSED, aten.SCALER))


def returns_nothing(called: str) -> bool:
    """Whether it only writes in place, so that it need not be run without data."""
    return called.endswith("_")


def joint(name: str, called: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorWork | None:
    """The update by one operator over lists; None if it only counts steps, which the host does."""
    lists = _lists([*args, *kwargs.values()])
    first = next((each for each in lists if any(tensor.dim() for tensor in each)), None)
    if first is None:
        return None
    sizes = [tensor.numel() for tensor in first]
    lists = [each for each in lists if [tensor.numel() for tensor in each] == sizes]
    written = _lists_written(name, called, lists)
    operands = lists[1:] if name in _FREE_OF_READING else lists
    reads = list(
        {id(tensor): tensor for each in operands for tensor in each}.values()
    )  # addcmul_(m, g, g) reads g once
    writes = [(tensor, whole_bytes(tensor)) for each in written for tensor in each]
    return OperatorWork(
        "optimizer", called, type_name(first[0].dtype), (sum(sizes), len(sizes)), 0.0,
        float(launches(sizes, len(lists) + (not written))), [(tensor, whole_bytes(tensor)) for tensor in reads],
        writes or [(tensor, whole_bytes(tensor)) for tensor in first],
    )  # fmt: skip


def pieces_of(seen: DispatchedOperator) -> list[OperatorWork]:
    """The work of an update of one parameter: products (of Muon) by themselves, else one piece or none."""
    if seen.name in _PRODUCTS:
        return pieces(seen)
    piece = _single(seen)
    return [] if piece is None else [piece]


def _single(seen: DispatchedOperator) -> OperatorWork | None:
    """An update of one parameter; None if it only counts steps."""
    tensors = seen.inputs + seen.outputs
    elements = max(tensor.numel() for tensor in tensors)
    if all(tensor.dim() == 0 for tensor in tensors):
        return None
    creates = seen.name in ("zeros", "zeros_like", "full", "full_like", "ones_like", "new_zeros")
    if creates:  # states are created in the first update only
        return None
    reads = [] if seen.name in aten.OVERWRITES else seen.inputs
    if seen.name == "copy":
        reads = seen.inputs[1:]
    return OperatorWork(
        "optimizer", seen.called, type_name(tensors[0].dtype), (elements, 1), 0.0, 1.0,
        [(tensor, whole_bytes(tensor)) for tensor in reads],
        [(tensor, whole_bytes(tensor)) for tensor in seen.outputs + seen.written],
    )  # fmt: skip


def joined(calls: list[OperatorCall], parameters: list[Any], name: str) -> list[OperatorCall]:
    """The whole update as one operator for each data type of parameters, and the products in it as they are."""
    elements: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for parameter in parameters:
        elements[type_name(parameter.dtype)] += parameter.numel()
        tensors[type_name(parameter.dtype)] += 1
    most = elements.most_common(1)[0][0]
    found = [call for call in calls if call.kind == "product"]
    rest = [call for call in calls if call.kind != "product"]
    for dtype, count in elements.items():
        mine = [call for call in rest if call.dtype == dtype or (dtype == most and call.dtype not in elements)]
        moved, kernels = sum(call.bytes for call in mine), sum(call.launches for call in mine)
        if mine:
            shape = (count, tensors[dtype])
            found.append(
                OperatorCall("optimizer", name, "optimizer", dtype, shape, 0.0, kernels, (Access(-1, moved),), ())
            )
    return found


def unscale(gradients: list[Any], recorder: Any) -> None:
    """Adds what a GradScaler does before the update."""
    sizes = [gradient.numel() for gradient in gradients]
    shape, kernels = (sum(sizes), len(sizes)), float(launches(sizes, 1))
    name = f"{aten.SCALER}non_finite_check_and_unscale_"
    recorder.add(piece("optimizer", name, gradients[0].dtype, shape, gradients, gradients, 0.0, kernels))


def launches(elements: list[int], lists: int) -> int:
    """The kernels of one multi_tensor_apply over tensors with these numbers of elements, in so many lists.

    Source: aten/src/ATen/native/cuda/MultiTensorApply.cuh of torch.
    """
    most = _TENSORS_OF_A_LAUNCH[min(max(lists, 1), len(_TENSORS_OF_A_LAUNCH)) - 1]
    count = tensors = blocks = 0
    for size in elements:
        if not size:
            continue
        tensors += 1
        chunks = -(-size // _CHUNK)
        while chunks:
            taken = min(chunks, _BLOCKS_OF_A_LAUNCH - blocks)
            chunks, blocks = chunks - taken, blocks + taken
            if blocks == _BLOCKS_OF_A_LAUNCH or (tensors == most and not chunks):
                count, blocks = count + 1, 0
                tensors = 1 if chunks else 0
    return count + (blocks > 0)


def _lists(arguments: list[Any]) -> list[list[Any]]:
    import torch

    return [
        list(each)
        for each in arguments
        if isinstance(each, (list, tuple)) and each and all(isinstance(one, torch.Tensor) for one in each)
    ]


def _lists_written(name: str, called: str, lists: list[list[Any]]) -> list[list[Any]]:
    """The lists that the operator writes; none if it makes a new result.

    A fused update writes all lists but the gradients, any other operator the first list.
    """
    if not returns_nothing(called):
        return []
    if name.startswith(aten.FUSED):
        return [lists[0], *lists[2:]]
    return lists[:1]
