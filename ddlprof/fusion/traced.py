"""The forward of fused models as a recorded list of operators. Mapping a small model takes mostly Python's time.

A recording is valid only if forward is the same each time. It is made twice and compared, and compared again with
forward itself at steps 1, 2, 4, 8, ... If forward changes between steps, Untraceable is raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ddlprof.base.errors import UserError
from ddlprof.fusion.graph_capture import Recording, record
from ddlprof.fusion.random_state import draws_undone

OfAll = Callable[[dict[str, Tensor], dict[str, Tensor], tuple[Any, ...]], Any]
"""Computes something for all models from trained parameters, other tensors and a batch."""
Run = Callable[..., Any]
_MOST_GRAPHS = 32
"""The most recordings (functions and shapes of batches). Forwards with more would be recorded all the time."""
_TOLERANCE = 1e-3
"""The largest difference relative to the largest value. Rounding stays below it; different operators do not."""


class Untraceable(UserError):
    """Forward is not the same each time."""


@dataclass
class _Recording:
    run: Run | None
    """The recorded function; None: this cannot be recorded."""
    uses: int = 0


class Traced:
    """Recordings of functions of all models, by function, mode, autocast and shapes of the batch."""

    def __init__(self, called: nn.Module) -> None:
        self._called = called
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
        leaves: list[Tensor] = []
        kind = _kind(batch, leaves)
        grad = torch.is_grad_enabled() and differentiable
        whole = (key, self._called.training, grad, self._autocast(), kind)
        found = self._recordings.get(whole)
        if found is None:
            if len(self._recordings) >= _MOST_GRAPHS:
                return function(trained, rest, batch)
            found = self._recordings[whole] = _Recording(self._record(function, trained, rest, batch, grad))
        if found.run is None:
            return function(trained, rest, batch)
        found.uses += 1
        if found.uses & (found.uses - 1) == 0 and not self._agrees(found.run, function, trained, rest, batch, grad):
            if found.uses > 1:
                raise Untraceable("forward of the model is not the same at each step")
            found.run = None
            return function(trained, rest, batch)
        return self._replayed(found.run, grad, [*trained.values(), *rest.values(), *leaves])

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

    def _record(self, function: OfAll, trained: Any, rest: Any, batch: Any, grad: bool) -> Run | None:
        before = self._numbers()
        try:
            one, other = (self._recorded(function, trained, rest, batch) for _ in range(2))
        except Exception:  # vmap supports it, recording does not
            return None
        if not one.same_as(other) or self._numbers() != before:
            return None
        return one.compiled(grad)

    def _recorded(self, function: OfAll, trained: Any, rest: Any, batch: Any) -> Recording:
        own = {name: each.clone() for name, each in rest.items()}
        leaves: list[Tensor] = []
        _kind(batch, leaves)
        with draws_undone(self._device):
            return record(lambda: function(trained, own, batch), [*trained.values(), *own.values(), *leaves])

    def _numbers(self) -> list[Any]:
        """Numbers in plain attributes, which forward may change, such as a count of its calls."""
        kinds = (bool, int, float, str)
        return [
            (name, value)
            for module in self._called.modules()
            for name, value in vars(module).items()
            if isinstance(value, kinds)
        ]

    def _agrees(self, run: Run, function: OfAll, trained: Any, rest: Any, batch: Any, grad: bool) -> bool:
        leaves: list[Tensor] = []
        _kind(batch, leaves)
        found = []
        for way in (run, None):
            own = {name: each.clone() for name, each in rest.items()}
            with draws_undone(self._device):
                if way is None:
                    given = function(trained, own, batch)
                else:
                    given = self._replayed(way, grad, [*trained.values(), *own.values(), *leaves])
            found.append([*pytree.tree_leaves(given), *own.values()])
        return len(found[0]) == len(found[1]) and all(itertools.starmap(_alike, zip(*found, strict=True)))


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


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach().double(), other.detach().double()
    finite = other[other.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest, equal_nan=True)
