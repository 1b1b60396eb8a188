"""A recorded step as one CUDA graph: the host launches it whole in place of each operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddlprof.extensions.fusion.random_state import draws_undone

_WARM_UPS = 2
"""Calls before the capture, in which libraries choose kernels and take memory, as they must not while it lasts."""


class NoGraph(Exception):
    """A step cannot be captured. The text is one line."""


class StepGraph:
    """A recorded function on tensors at fixed places: parameters and buffers of the models, copies of the batch."""

    def __init__(
        self, run: Callable[..., Any], trained: dict[str, Tensor], rest: dict[str, Tensor], batch: Sequence[Tensor]
    ) -> None:
        """Captures `run`, which returns results and new buffers. Nothing is changed. Raises NoGraph.

        The calls before are made on a stream of their own, as CUDA asks, and with copies of the buffers.
        """
        self._device = next(iter(trained.values())).device
        if self._device.type != "cuda":
            raise NoGraph(f"the models are on {self._device}")
        if any(each.device != self._device for each in (*trained.values(), *rest.values(), *batch)):
            raise NoGraph("a parameter, a buffer or a tensor of the batch is not on the GPU of the others")
        self._rest, self._batch = dict(rest), [each.detach().clone() for each in batch]
        self._graph: Any = torch.cuda.CUDAGraph()
        before, side = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        side.wait_stream(before)
        try:
            with draws_undone(self._device), torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    run(*trained.values(), *[each.clone() for each in rest.values()], *self._batch)
                # Other threads, such as those that pin batches, may call CUDA meanwhile.
                with torch.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                    self._found, changed = run(*trained.values(), *self._rest.values(), *self._batch)
                    for name, each in changed.items():
                        self._rest[name].copy_(each)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # ended by what is not allowed in a capture, whose own error comes second
            cause = error.__context__ or error
            raise NoGraph(" ".join(str(cause).split())[:160]) from None
        before.wait_stream(side)

    def replay(self, rest: dict[str, Tensor], batch: Sequence[Tensor]) -> Any:
        """The results, at places that the next replay writes to again. Buffers change where they are."""
        for mine, given in zip(self._batch, batch, strict=True):
            mine.copy_(given, non_blocking=True)
        for name, mine in self._rest.items():
            if rest[name] is not mine:  # replaced by a forward that was not replayed
                mine.copy_(rest[name])
                rest[name] = mine
        self._graph.replay()
        return self._found, {}
