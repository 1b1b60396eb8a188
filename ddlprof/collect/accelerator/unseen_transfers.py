"""Transfers between GPUs that no hook sees: named in a note where they are used."""

from __future__ import annotations

import sys

SYMMETRIC = "not seen: what is done through symmetric memory (torch.distributed._symmetric_memory), by whatever engine"
_IN_USE = ("_group_name_to_store", "_group_name_to_workspace_tensor", "_backend_streams", "_symm_mem_pools")


def symmetric_memory_is_used() -> bool:
    """Cheap enough for every update. Compiling for several ranks imports it, too."""
    module = sys.modules.get("torch.distributed._symmetric_memory")
    return module is not None and any(getattr(module, name, None) for name in _IN_USE)
