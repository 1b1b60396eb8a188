"""Which tensors are alive when: a count beside the allocator's, for operators as torch runs them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Counts the bytes of storages that were made under it and are not freed yet; those of gradients apart."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self.gradient_bytes = 0, 0
        self.points: list[tuple[float, float]] = []
        self._known = set(known)
        self._refs: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        self.points.append((float(self.gradient_bytes), float(self.bytes)))
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.bytes += size
        self._refs[key] = [weakref.ref(storage, lambda _: self._free(key)), size, False]

    def _free(self, key: int) -> None:
        _, size, gradient = self._refs.pop(key)
        self._known.discard(key)
        self.bytes -= 0 if gradient else size
        self.gradient_bytes -= size if gradient else 0

    def is_gradient(self, tensor: torch.Tensor) -> None:
        """From now on the tensor's storage counts as a gradient."""
        entry = self._refs.get(tensor.untyped_storage()._cdata)
        if entry and not entry[2]:
            entry[2] = True
            self.bytes -= entry[1]
            self.gradient_bytes += entry[1]
