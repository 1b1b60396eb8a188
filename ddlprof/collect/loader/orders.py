"""Whether the samples come in another order in each epoch: a DistributedSampler draws it from the epoch's number."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Orders:
    """Looks at the sampler of the first loader that has one of these, when an epoch begins."""

    def __init__(self) -> None:
        self._loader: Callable[[], Any] | None = None
        self._epoch: int | None = None
        self.repeated: int | None = None
        """The number of epochs that had the order of the one before; None: the first loader draws otherwise."""

    def iterated(self, loader: Any) -> None:
        """Called when a loader is asked for an iterator."""
        from torch.utils.data.distributed import DistributedSampler

        sampler = loader.sampler
        if type(sampler) is not DistributedSampler or not sampler.shuffle:
            return
        if self._loader is None:
            self._loader, self.repeated = weakref.ref(loader), 0
        elif self._loader() is not loader:
            return
        elif sampler.epoch == self._epoch:
            self.repeated = (self.repeated or 0) + 1
        self._epoch = sampler.epoch
