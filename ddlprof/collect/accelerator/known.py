"""The kinds of accelerator that steps are timed on: a new one is a file beside `cuda.py` and a line here."""

from __future__ import annotations

import sys
from typing import Any

from ddlprof.collect.accelerator.cuda import Cuda
from ddlprof.collect.accelerator.protocol import Accelerator

KINDS: tuple[type[Accelerator], ...] = (Cuda,)


def of_build(torch: Any) -> Accelerator | None:
    """The first kind that this build of torch can use; None where steps are timed on the training thread."""
    return next((kind(torch) for kind in KINDS if kind.is_built(torch)), None)


def in_use() -> Accelerator | None:
    """The kind that the script computes on; None before it does, or where it has not imported torch."""
    torch = sys.modules.get("torch")
    accelerator = None if torch is None else of_build(torch)
    return accelerator if accelerator is not None and accelerator.in_use() else None


def uses_tf32(device: Any, convolutions: bool) -> bool:
    """Whether products of matrices, or convolutions, run in TF32 on a device; False for one that nobody knows."""
    accelerator = of_build(sys.modules["torch"])
    return accelerator is not None and device.type == accelerator.kind and accelerator.uses_tf32(device, convolutions)
