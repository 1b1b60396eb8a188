"""The forward of fused models as a recorded list of operators. Mapping a small model takes mostly Python's time.

A recording is valid only if forward is the same each time. It is made twice and compared, holds only for the plain
values that forward can see (`reached`), and is compared again with forward itself at steps 1, 2, 4, 8, ... If forward
changes between steps all the same, Untraceable is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.graph_capture import Recording, Unrecordable, record
from ddlprof.extensions.fusion.random_state import draws_of_python, draws_undone
from ddlprof.extensions.fusion.reached import Reached

OfAll = Callable[[dict[str, Tensor], dict[str, Tensor], tuple[Any, ...]], Any]
"""Computes something for all models from trained parameters, other tensors and a batch."""
Run = Callable[..., Any]
_MOST_GRAPHS = 32
"""The most recordings (functions and shapes of batches). Forwards with more would be recorded all the time."""
_TOLERANCE, _LOW_TOLERANCE = 1e-3, 3e-2
"""The largest difference relative to the largest value. Rounding stays below it; different operators do not. The second
is for tensors of 16 bits, as some kernels of GPUs add up in another order each time."""


class Untraceable(UserError):
    """Forward is not the same each time."""


@dataclass
class _Recording:
    run: Run | None
    """The recorded function; None: this cannot be recorded."""
    uses: int = 0
    is_low: bool = False
    """Whether any tensor has 16 bits."""


class Traced:
    """Recordings of functions of all models, by function, mode, autocast and shapes of the batch."""

    def __init__(self, called: nn.Module) -> None:
        self._called, self._reached = called, Reached(called)
        self._is_given_up = False
        """Whether calls of forward change what it sees, so that each has to be made."""
        self._device = next(called.parameters()).device
        self._devices = sorted({each.device.type for each in called.parameters()})
        self._recordings: dict[Hashable, _Recording] = {}

    @property
    def recordings(self) -> int:
        """The number of recordings that can be used."""
        return sum(each.run is not None for each in self._recordings.values())

    def __call__(
        self,
        key: Hashable,
        function: OfAll,
        trained: dict[str, Tensor],
        rest: dict[str, Tensor],
        batch: Any,
        differentiable: bool = True,
    ) -> Any:
        """The result of `function`, by its recording if there is one. Raises Untraceable.

        `differentiable`: whether gradients of the result may be computed.
        """
        if self._is_given_up:
            return function(trained, rest, batch)
        leaves: list[Tensor] = []
        kind = _kind(batch, leaves)
        grad = torch.is_grad_enabled() and differentiable
        mode = (key, self._called.training, grad, self._autocast(), kind)
        whole = (mode, self._reached.values(key))
        found = self._recordings.get(whole)
        if found is None:
            if len(self._recordings) >= _MOST_GRAPHS:
                return function(trained, rest, batch)
            found = self._record(key, function, trained, rest, batch, leaves, grad)
            whole = (mode, self._reached.values(key))  # the first call may have filled caches
            self._recordings[whole] = found
        run = found.run
        if run is None:
            return function(trained, rest, batch)
        found.uses += 1
        if found.uses & (found.uses - 1) == 0 and not self._agrees(found, function, trained, rest, batch, leaves, grad):
            if found.uses > 1:
                raise Untraceable("forward of the model is not the same at each step")
            found = self._recordings[whole] = _Recording(None)
            return function(trained, rest, batch)
        return self._replayed(run, grad, [*trained.values(), *rest.values(), *leaves])

    def _autocast(self) -> tuple[tuple[str, torch.dtype], ...]:
        """The devices of the model on which autocast is on now, and its data types."""
        return tuple(
            (each, torch.get_autocast_dtype(each)) for each in self._devices if torch.is_autocast_enabled(each)
        )

    def _replayed(self, run: Run, grad: bool, given: list[Tensor]) -> Any:
        """The result of a recording. It contains autocast's casts, so autocast is off meanwhile."""
        with ExitStack() as stack:
            for device, _ in self._autocast():
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(torch.set_grad_enabled(grad))
            return run(*given)

    def _record(
        self, key: Hashable, function: OfAll, trained: Any, rest: Any, batch: Any, leaves: list[Tensor], grad: bool
    ) -> _Recording:
        recordings, seen = [], []
        try:
            for _ in range(2):  # the first may fill caches
                recordings.append(self._recorded(function, trained, rest, batch, leaves))
                seen.append(self._reached.values(key))
        except Exception:  # vmap supports it, recording does not
            return _Recording(None)
        self._is_given_up = seen[0] != seen[1]
        one, other = recordings
        if self._is_given_up or not one.same_as(other):
            return _Recording(None)
        return _Recording(one.compiled(grad), is_low=one.is_low)

    def _recorded(self, function: OfAll, trained: Any, rest: Any, batch: Any, leaves: list[Tensor]) -> Recording:
        own = {name: each.clone() for name, each in rest.items()}
        with draws_undone(self._device):
            before = draws_of_python()
            found = record(lambda: function(trained, own, batch), [*trained.values(), *own.values(), *leaves])
            if draws_of_python() != before:
                raise Unrecordable("forward draws random numbers of Python or NumPy")
        return found

    def _agrees(
        self, recording: _Recording, function: OfAll, trained: Any, rest: Any, batch: Any, leaves: list[Tensor],
        grad: bool,
    ) -> bool:  # fmt: skip
        found = []
        for way in (recording.run, None):
            own = {name: each.clone() for name, each in rest.items()}
            with draws_undone(self._device):
                if way is None:
                    given = function(trained, own, batch)
                else:
                    given = self._replayed(way, grad, [*trained.values(), *own.values(), *leaves])
            found.append([*pytree.tree_leaves(given), *own.values()])
        return _all_alike(found[0], found[1], recording.is_low)


def _kind(batch: Any, leaves: list[Tensor]) -> Hashable:
    """What must be equal for a recording to be valid. Adds the tensors of the batch to `leaves`."""
    if isinstance(batch, Tensor):
        leaves.append(batch)
        return batch.shape, batch.dtype
    if isinstance(batch, (tuple, list)):
        return type(batch), tuple([_kind(each, leaves) for each in batch])
    if isinstance(batch, Mapping):
        return type(batch), tuple([(name, _kind(each, leaves)) for name, each in batch.items()])
    return batch  # type: ignore[no-any-return]


def _all_alike(ones: list[Any], others: list[Any], is_low: bool) -> bool:
    tolerance = _LOW_TOLERANCE if is_low else _TOLERANCE
    return len(ones) == len(others) and all(_alike(*pair, tolerance) for pair in zip(ones, others, strict=True))


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach().double(), other.detach().double()
    finite = other[other.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
