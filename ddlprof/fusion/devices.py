"""The device on which models are trained."""

from __future__ import annotations

from ddlprof.base.errors import UserError


def device_of(name: str) -> str:
    """`auto` is a CUDA device where there is one. Raises `UserError` for a device that is not here."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {name}: known are auto, cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"
