"""Transfers between GPUs that no hook sees: named in a note where they are used."""

from __future__ import annotations

import sys
from typing import Any

from ddlprof.collect.recorder import Recorder

SYMMETRIC = "not seen: what is done through symmetric memory (torch.distributed._symmetric_memory), by whatever engine"
PEERS = "not seen: copies between the GPUs of this process ({devices}), which its model is on"
_IN_USE = ("_group_name_to_store", "_group_name_to_workspace_tensor", "_backend_streams", "_symm_mem_pools")


def symmetric_memory_is_used() -> bool:
    """Cheap enough for every update. Compiling for several ranks imports it, too."""
    module = sys.modules.get("torch.distributed._symmetric_memory")
    return module is not None and any(getattr(module, name, None) for name in _IN_USE)


class PeerCopies:
    """Looks once at where the parameters of a model are."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looked = False

    def look(self, model: Any) -> None:
        """In a training forward."""
        if self._looked:
            return
        self._looked = True
        try:
            devices = sorted({str(p.device) for p in model.parameters() if p.device.type == "cuda"})
        except Exception:  # a compiled function, a model of another kind
            return
        if len(devices) > 1:
            self._recorder.note("peers", PEERS.format(devices=", ".join(devices)))
