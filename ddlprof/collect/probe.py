"""Looks once at what is trained and how: the module, its loader, and the floating point operations of one step.

Called from the hooks of the training thread in the first steps only; afterwards each call is one comparison.
Nothing of the user's is kept alive.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ddlprof.collect.flops import FlopCount, used_dynamo
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

_COUNTED_STEP = 1
"""The second step: the first one allocates, compiles and initialises lazily."""


class Probe:
    """What was seen of the model and its data; read by the helper thread after some steps."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.autocast: str | None = None
        self.loader_workers: int | None = None
        self.dataset_samples: int | None = None
        self.flops: FlopCount | None = None
        self._module: weakref.ref[Any] | None = None
        self._counting = False
        self._parameters = -1

    @property
    def module(self) -> Any:
        """The outermost module with most parameters, None if there is none (any more)."""
        return self._module() if self._module is not None else None

    def training_forward(self, module: Any) -> None:
        """Before an outermost forward with gradients; in a compiled function the module may not be known: None."""
        updates = self.recorder.boundaries
        if updates > _COUNTED_STEP and not self._counting:
            return
        with contextlib.suppress(Exception):  # facts are nice to have; the training goes on
            if updates > _COUNTED_STEP:  # the counted backward never came: it raised
                self.close()
                return
            self._look(module)
            if updates == _COUNTED_STEP and self.flops is None:
                self._count()

    def _look(self, module: Any) -> None:
        import torch

        count = sum(p.numel() for p in module.parameters() if p.requires_grad) if module is not None else -1
        if count > self._parameters:
            self._parameters, self._module = count, weakref.ref(module)
        device = "cuda" if torch.cuda.is_initialized() else "cpu"
        if torch.is_autocast_enabled(device):
            self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    def _count(self) -> None:
        self.flops = FlopCount()
        if not used_dynamo() and self.flops.enter():
            self._counting = True
            self.recorder.emit(Kind.TRACED)

    def backward_begin(self) -> None:
        """The outermost backward begins."""
        if self._counting and self.flops is not None:
            self.flops.mark_backward()

    def backward_end(self) -> None:
        """The outermost backward is over: one micro-batch has been counted."""
        if self._counting:
            self.close()

    def close(self) -> None:
        """Ends the counting, if it is still on."""
        if self._counting and self.flops is not None:
            self._counting = not self.flops.exit()

    def iterated(self, loader: Any) -> None:
        """A loader was asked for an iterator; the first one is taken for the training data's."""
        if self.loader_workers is None:
            self.loader_workers = int(loader.num_workers)
            with contextlib.suppress(Exception):  # an iterable data set has no length
                self.dataset_samples = len(loader.dataset)
