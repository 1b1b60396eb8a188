"""What is known of a tensor of a counted step, and tensors that are looked at when the step is over.

Between two operators of a training nothing of ours is in a processor's caches: the smallest operator then takes ten
times as long as right after another one. So hooks of a training on CPUs keep small tensors, and all of them are looked
at in a row. What the script may have filled anew by then is looked at before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ddlprof.collect.sparsity.zeros import Counts, Structure, nonzeros, structure
from ddlprof.torch_private.engine import version_of

LARGEST = 256 << 10
MOST = 32 << 20
"""Bytes of what a call keeps for the end of the step, and of what all calls do: more would cost new memory."""
_LARGEST_SAVED = 8 << 20
"""Bytes of an input that waits for the backward of its layer. Autograd keeps it as well, unless it is checkpointed."""


class Look(NamedTuple):
    """What is known of a tensor."""

    values: int
    counts: Counts
    structure: Structure | None


def look(tensor: Any, features: int, places: int, groups: int, with_structure: bool) -> Look:
    """`tensor`: (... samples ..., features, places ...), with `places` dimensions of places."""
    if tensor.dim() != places + 2:
        tensor = tensor.reshape(-1, features, *tensor.shape[tensor.dim() - places :])
    found = structure(tensor, groups) if with_structure else None
    return Look(tensor.numel(), nonzeros(tensor, groups), found)


class Kept(NamedTuple):
    """A tensor that waits, and how to see that nobody has changed it."""

    tensor: Any
    size: int
    """In bytes."""
    version: int
    address: int

    @property
    def is_unchanged(self) -> bool:
        """Writing to the tensor changes its version, another storage its address."""
        return version_of(self.tensor) == self.version and self.tensor.data_ptr() == self.address


def keep(tensor: Any, is_saved: bool) -> Kept | None:
    """None where the tensor must not wait. `is_saved`: backward of the layer needs it, too."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu:  # on a device, another stream may write to its memory
        return None
    size = tensor.numel() * tensor.element_size()
    if size > (_LARGEST_SAVED if is_saved else LARGEST):
        return None
    return Kept(tensor, size, version_of(tensor), tensor.data_ptr())
