"""What differs from one generation of GPUs to the next beyond the data sheet, by compute capability.

A generation that nobody measured is taken for the newest older one that somebody did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    """The GPUs of one compute capability."""

    capability: float
    cuda: float
    """What products on CUDA cores reach beside the other generations; 1 where nobody measured it."""
    batched: float
    """The same of batched products, beside `cuda`."""
    tensor: float
    """The same on tensor cores."""
    memory: float
    """The share of the data sheet's bandwidth that elementwise operators reach, beside that of the kind of memory."""
    cuda_energy: float
    """Energy of an operation on CUDA cores beside that of 16 nm."""
    tensor_energy: float
    """Energy of an operation on tensor cores beside that of the first generation of them."""
    batched_tiles: tuple[tuple[float, float], ...]
    """The tiles that the library has for batched fp32 products, rows by columns; empty: all of them."""


def generation_of(capability: float, known: Sequence[Generation]) -> Generation:
    """`known` is in the order of capabilities."""
    older = [generation for generation in known if generation.capability <= capability + 1e-6]
    return older[-1] if older else known[0]
