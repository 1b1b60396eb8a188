"""What torch can do on this machine, printed as one JSON object.

`ddlprof doctor` runs it as a process of its own: importing torch is slow, and a broken torch or name service may
hang or crash. Nothing here runs in a training process.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from datetime import timedelta
from typing import Any

from ddlprof.collect.accelerator import known


def main() -> None:
    """Prints the answers; raises where torch cannot be imported."""
    import torch

    answers: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": [],
        "device_timeline": False,
        "limits": known.limits_of(torch),
        "backends": [],
        "interception": None,
        "gloo_address": None,
        "private_names": _private_names(torch),
    }
    accelerator = known.of_torch(torch)
    if accelerator is not None and (names := accelerator.device_names()):
        answers["devices"], answers["device_timeline"] = names, accelerator.sees_kernels()
    if torch.distributed.is_available():
        answers["backends"] = _backends()
        answers["gloo_address"] = gloo_address()
        answers["interception"] = _interception()
    print(json.dumps(answers))  # noqa: T201


def _private_names(torch: Any) -> dict[str, Any]:
    """How many of torch's private names are there, and what is lost without each of the others."""
    from ddlprof.torch_private.check import look

    found = look(torch)
    return {"present": found.present, "missing": {str(name): name.without_it for name in found.missing}}


def gloo_address() -> str | None:
    """The address that gloo listens on where no interface is named: the first of the host name's that is ours."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as listener:
            try:
                listener.bind(address)
            except OSError:
                continue
            return str(address[0])
    return None


def _backends() -> list[str]:
    import torch.distributed as dist

    return [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]


def _interception() -> str:
    """Empty where a collective is seen by our hooks, else what went wrong."""
    try:
        return "" if _sees_a_collective() else "collectives are not seen by the hooks"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _sees_a_collective() -> bool:
    import torch
    import torch.distributed as dist

    from ddlprof.collect.hooks import collectives
    from ddlprof.collect.hooks.table import hook_context
    from ddlprof.collect.recorder import Recorder
    from ddlprof.model.events import Kind

    recorder = Recorder()
    uninstall = collectives.install(hook_context(torch, recorder))
    with tempfile.TemporaryDirectory() as directory:
        store = dist.FileStore(os.path.join(directory, "store"), 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=10))
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    uninstall()
    return any(event[0] == Kind.COLLECTIVE for event in recorder.recent())


if __name__ == "__main__":
    main()
