"""`torch.save`: writing a checkpoint is part of `other`, and its step is no ordinary one."""

from __future__ import annotations

import functools
from typing import Any

from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.surroundings import Surroundings
from ddlprof.model.events import Kind


def install(around: Surroundings) -> Uninstall:
    """Both names of the function, `torch.save` and `torch.serialization.save`."""
    torch, recorder = around.torch, around.recorder
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if not recorder.emit(Kind.CHECKPOINT_BEGIN):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.emit(Kind.CHECKPOINT_END)

    return all_of(replace(torch, "save", save), replace(torch.serialization, "save", save))
