"""Backward on simulated GPUs: autograd's engine has a thread for each device, and the caller waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._pytree import tree_any

from scripts.lab.simulated_cuda.device import Machine
from scripts.lab.simulated_cuda.tensors import CudaTensor


def _is_transformed() -> bool:
    """Whether modes or functorch's transforms are on, which torch hands to its engine's threads and we cannot."""
    stack = torch._C._functorch.peek_interpreter_stack()
    return stack is not None or torch._C._len_torch_dispatch_stack() > 0


class Engine:
    """Stands in the place of torch's engine, which it asks for all else."""

    def __init__(self, machine: Machine, original: Any) -> None:
        self._machine = machine
        self._original = original
        self._thread = ThreadPoolExecutor(1, "pt_autograd_0")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def run_backward(self, roots: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs in the device's thread what begins at tensors on a device; a backward in a backward stays there."""
        on_device = tree_any(lambda root: isinstance(root, CudaTensor), roots)
        if not on_device or _is_transformed() or threading.current_thread().name.startswith("pt_autograd"):
            return self._original.run_backward(roots, *args, **kwargs)
        where = self._machine.where()

        def run() -> Any:
            self._machine.go_to(where)
            return self._original.run_backward(roots, *args, **kwargs)

        return self._thread.submit(run).result()

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown()
