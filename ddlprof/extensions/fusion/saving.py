"""Writes the trained models of a sweep."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from ddlprof.base.errors import UserError, refusing
from ddlprof.base.files import replacing


def save(folder: Path, models: Mapping[int, nn.Module]) -> list[str]:
    """Writes `trial-N.pt` for each model, a state_dict for `torch.load`.

    Returns notes on models that could not be written.
    """
    failed = []
    for number, model in models.items():
        path = folder / f"trial-{number}.pt"
        try:
            with replacing(path) as temporary:
                torch.save(model.state_dict(), temporary)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            failed.append(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")
    return failed


def prepare(folder: Path) -> None:
    """Makes the folder before the training begins. Raises UserError if nothing can be written into it."""
    with refusing(f"{folder}: cannot be made"):
        folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written to")
