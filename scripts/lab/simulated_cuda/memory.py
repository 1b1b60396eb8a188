"""What torch's allocator would tell of simulated GPUs: the memory of the tensors that live there."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

_SEGMENT = 2**21
"""Bytes of the pieces in which the allocator takes memory from the driver, and keeps it."""


class Memory:
    """Counts each storage once, as long as one of its tensors lives."""

    def __init__(self) -> None:
        self.allocated: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        """By device, in bytes: now, the most since the last reset, and the most ever."""
        self._tensors: Counter[tuple[int, int]] = Counter()
        """By storage: how many of its tensors live."""
        self._references: set[Any] = set()

    def hold(self, tensor: Any, device: int) -> None:
        """Counts a new tensor on a device."""
        storage = tensor.untyped_storage()
        key, size = (device, storage._cdata), storage.nbytes()

        def gone(reference: Any) -> None:
            self._references.discard(reference)
            self._tensors[key] -= 1
            if not self._tensors[key]:
                del self._tensors[key]
                self.allocated[device] -= size

        self._references.add(weakref.ref(tensor, gone))
        self._tensors[key] += 1
        if self._tensors[key] == 1:
            self.allocated[device] += size
            self.peak[device] = max(self.peak[device], self.allocated[device])
            self.most[device] = max(self.most[device], self.peak[device])

    def reset_peak(self, device: int) -> None:
        """The peak counts anew."""
        self.peak[device] = self.allocated[device]

    def stats(self, device: int) -> dict[str, Any]:
        """As `torch.cuda.memory_stats_as_nested_dict`, as far as anybody asks."""
        reserved = -(-self.most[device] // _SEGMENT) * _SEGMENT
        return {
            "allocated_bytes": {"all": {"current": self.allocated[device], "peak": self.peak[device]}},
            "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
        }
