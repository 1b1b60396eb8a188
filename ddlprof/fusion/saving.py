"""Trained models as files: one for each trial, there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from ddlprof.base.errors import UserError
from ddlprof.base.files import replacing


def save(folder: Path, models: Mapping[int, nn.Module]) -> list[str]:
    """Writes `trial-N.pt` for each, a state_dict for `torch.load`. What could not be written, and why."""
    failed = []
    for number, model in models.items():
        path = folder / f"trial-{number}.pt"
        try:
            with replacing(path) as temporary:
                torch.save(model.state_dict(), temporary)
        except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
            failed.append(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")
    return failed


def prepare(folder: Path) -> None:
    """Makes the folder, before hours of training. Raises UserError where nothing can be written into it."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written to")
