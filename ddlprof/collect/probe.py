"""Looks once at what is trained and how: the module, its loader, and the floating point operations of one step.

Called from the hooks of the training thread in the first steps only; afterwards each call is one comparison.
Nothing of the user's is kept alive.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ddlprof.collect.features import outermost
from ddlprof.collect.flops import FlopCount, used_dynamo
from ddlprof.collect.parallel import pipeline_ranks
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
        self.pipeline_ranks = 1
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._counting = False

    @property
    def modules(self) -> list[Any]:
        """The outermost modules that are trained, the largest first; those that are gone are left out."""
        return outermost(module for ref in self._modules.values() if (module := ref()) is not None)

    @property
    def all_alive(self) -> bool:
        """None of the modules seen is gone."""
        return all(ref() is not None for ref in self._modules.values())

    def training_forward(self, module: Any) -> None:
        """Before an outermost forward with gradients."""
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

        known = self._modules.get(id(module))
        if (known is None or known() is not module) and any(p.requires_grad for p in module.parameters()):
            self._modules[id(module)] = weakref.ref(module)
        self.pipeline_ranks = max(self.pipeline_ranks, pipeline_ranks())
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
