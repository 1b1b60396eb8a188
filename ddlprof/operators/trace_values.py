"""Likely answers if a model asks for values that fake tensors do not have, or for sizes that depend on values.

A mask is assumed to be all ones, a test for something unusual (`any`) to be false, and an expert of a mixture to get an
even share of the tokens. Answers are counted, so that the number can be reported.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from math import prod
from typing import Any

from ddlprof.operators.trace_memory import Storages
from ddlprof.torch_private import aten, fake

_KEEP_SHARE = frozenset({aten.COPY_TO, "clone", "ne", "gt", "mul", "bitwise_and", "logical_and", "where"})
"""Operators whose result is nonzero where all operands are."""


class Values:
    """The answers in one step."""

    def __init__(self, storages: Storages) -> None:
        self.asked = 0
        """The number of values and sizes that were asked for."""
        self._storages = storages
        self._share: dict[int, float] = {}
        """Storages of which only a share is nonzero, such as one-hot vectors, with that share."""
        self._highest: dict[int, float] = {}
        """The largest value of a running count of these."""
        self._from: dict[int, str] = {}

    def answer(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Whether this operator asks for values, and if so its result."""
        import torch

        if name == aten.VALUE:
            return True, self._scalar(args[0])
        if name in ("equal", "is_nonzero"):
            self.asked += 1
            return True, True
        if name == aten.GROUPED_PRODUCT:
            return True, _grouped_product(*args[:3])
        if name == "nonzero":
            places = args[0].new_empty((self._count(args[0]), args[0].dim()), dtype=torch.int64)
            return True, places
        if name == "masked_select":
            return True, args[0].new_empty((self._count(args[1]),))
        if name in aten.INDEXED and _has_mask(args[1], torch):
            indices = [self._places(index, torch) for index in args[1]]
            flat = [one for each in indices for one in each]
            return True, func(args[0], flat, *args[2:], **kwargs)
        if name in aten.UNIQUE:
            self.asked += 1
            return False, None
        if name == "repeat_interleave" and len(args) == 1 and kwargs.get("output_size") is None:
            self.asked += 1
            return True, args[0].new_empty((args[0].numel(),))
        return False, None

    def follow(self, name: str, args: tuple[Any, ...], inputs: list[Any], outputs: list[Any]) -> None:
        """Notes what is known of the values of results."""
        if name == "scatter" and len(inputs) > 1:
            self._one_hot((outputs or inputs)[0], inputs[1].numel())
        if not outputs:
            return
        number = self._storages.number(outputs[0])
        self._from[number] = name
        shares = [self._share.get(self._storages.number(each)) for each in inputs]
        known = [share for share in shares if share is not None]
        if name == "eq" and len(inputs) == 2 and not any(each.is_floating_point() for each in inputs):
            largest = max(each.numel() for each in inputs)
            if largest < outputs[0].numel():  # an index compared with all its possible values
                self._share[number] = largest / outputs[0].numel()
        elif name == "cumsum" and known:
            self._highest[number] = known[0] * inputs[0].shape[args[1]]
        elif name in ("le", "lt") and self._storages.number(inputs[0]) in self._highest:
            highest = self._highest[self._storages.number(inputs[0])]
            if isinstance(args[1], (int, float)) and highest > 0:
                self._share[number] = min(1.0, args[1] / highest)
        elif name in _KEEP_SHARE and known:
            self._share[number] = prod(known)
        elif name in ("index", "index_select") and shares[0] is not None:
            self._share[number] = shares[0]

    def knows(self, storage: int) -> bool:
        """Whether something is known of the values in a storage."""
        return storage in self._share or storage in self._highest

    def _one_hot(self, tensor: Any, set_elements: int) -> None:
        if set_elements < tensor.numel():
            self._share[self._storages.number(tensor)] = set_elements / tensor.numel()

    def _scalar(self, tensor: Any) -> Any:
        import torch

        constant = getattr(tensor, "constant", None)
        if constant is not None:
            return constant.item()
        self.asked += 1
        made_by = self._from.get(self._storages.number(tensor))
        if tensor.dtype == torch.bool:
            return made_by != "any"
        if made_by == "nonzero":  # one of the places that were found
            return int(tensor.storage_offset())
        return 1.0 if tensor.is_floating_point() else 1

    def _count(self, mask: Any) -> int:
        self.asked += 1
        return int(mask.numel() * self._share.get(self._storages.number(mask), 1.0) + 0.5)

    def _places(self, index: Any, torch: Any) -> list[Any]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        rows = self._count(index)
        return [index.new_empty((rows,), dtype=torch.int64) for _ in range(index.dim())]


def _grouped_product(a: Any, b: Any, ends: Any = None) -> Any:
    """The result of products of groups of rows or columns. Without data, torch itself makes it for bf16 only."""
    if a.dim() == 2 and b.dim() == 2:
        return a.new_empty((ends.shape[0], a.shape[0], b.shape[1]))
    if a.dim() == 3 and b.dim() == 3:
        return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))
    return a.new_empty((a.shape[-2], b.shape[-1]))


def _has_mask(indices: Any, torch: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def texts() -> Any:
    """A mode in which the text of a tensor with one element is that of a value, as with data."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Texts(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if fake.formats_itself(func, torch) and args[0].dim() == 0:
                return format(args[0].item(), args[1])
            return func(*args, **(kwargs or {}))

    return Texts()


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """A context in which transformers asks for values as in a training: where it knows that tensors have no data, it
    asks nothing, and makes a mask for attention that a training has not."""
    library: Any = sys.modules.get("transformers.utils.import_utils")
    asked = getattr(library, "is_fake_tensor", None)
    if asked is not None:
        library.is_fake_tensor = lambda tensor: False
    try:
        yield
    finally:
        if asked is not None:
            library.is_fake_tensor = asked
