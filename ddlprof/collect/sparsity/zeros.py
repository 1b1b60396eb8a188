"""Zeros of one tensor: counted exactly, on its device, without waiting for it.

`torch.count_nonzero` reads a float at a tenth of the memory's speed on a CPU. Comparing into a tensor of floats and
adding that up is as fast as copying, and exact, as no sum below gets near 2**24, from where floats skip integers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

_CHUNK = 1 << 24
"""Values that are looked at at once, so that little memory is needed beside the training's."""
_FOUR = 4
_KEPT_OF_FOUR = 2


class Zeros(NamedTuple):
    """What is known of a tensor of the form (samples, groups, features of a group, places ...)."""

    values: int
    filled: Any
    """Nonzeros by (sample, group, places ...): the sum over the features of a group."""
    column_filled: Any
    """By (group, feature): 1 where some value of the column is not zero, else 0. None without a look at structure."""
    fours: int
    fitting_fours: Any
    """Groups of four neighbours with two zeros or more; None where that was not looked at."""

    def nonzeros(self) -> Any:
        """Nonzeros of the whole tensor, as a double."""
        return self.filled.sum(dtype=torch.float64)


def look(tensor: Any, groups: int = 1, structure: bool = False) -> Zeros:
    """`tensor`: (samples, features, places ...), its features those of `groups` groups one after the other.

    `structure`: also look for columns of zeros and groups of four.
    """
    samples, features = tensor.shape[0], tensor.shape[1]
    at_once = max(1, _CHUNK // max(1, tensor[:1].numel())) if samples else 1
    form = (groups, features // groups, *tensor.shape[2:])
    filled, columns, fitting = [], [], []
    for part in tensor.split(at_once):
        ones = torch.ne(part, 0, out=torch.empty_like(part, dtype=torch.float32)).unflatten(1, form[:2])
        filled.append(ones.sum(2))
        if structure:
            columns.append(ones.amax([0, *range(3, ones.dim())]))
        if structure and form[1] % _FOUR == 0:
            fitting.append((ones.unflatten(2, (-1, _FOUR)).sum(3) <= _KEPT_OF_FOUR).sum(dtype=torch.float64))
    return Zeros(
        tensor.numel(),
        filled[0] if len(filled) == 1 else torch.cat(filled),
        torch.stack(columns).amax(0) if columns else None,
        tensor.numel() // _FOUR if fitting else 0,
        sum(fitting) if fitting else None,
    )


def inner(a: Any, b: Any) -> Any:
    """The sum of products of two tensors of counts, exact in doubles."""
    return torch.dot(a.reshape(-1).double(), b.reshape(-1).double())


def reach(filled: Any, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Any:
    """Of counts (samples, groups, places ...) that are padded already: what each place of the output adds up."""
    import torch.nn.functional as F

    if math.prod(kernel) == 1 and math.prod(stride) == 1:
        return filled
    if any(each != 1 for each in dilation):  # in doubles, as single precision may be cut short on a GPU
        groups = filled.shape[1]
        ones = torch.ones((groups, 1, *kernel), dtype=torch.float64, device=filled.device)
        convolution = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
        return convolution(filled.double(), ones, stride=stride, dilation=dilation, groups=groups)
    if len(kernel) == 1:
        return F.avg_pool2d(filled.unsqueeze(2), (1, *kernel), (1, *stride), divisor_override=1).squeeze(2)
    pool = F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d
    return pool(filled, kernel, stride, divisor_override=1)
