"""Subnormal numbers among the gradients, parameters and optimizer's states of a training on processors.

Below 1.2e-38 a float32 has no leading digit any more, and many processors compute with such numbers in microcode: up to
hundreds of times as slowly. Gradients that vanish become subnormal, weights that decay, and moments of parameters that
get no gradient for a thousand steps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ddlprof.base.real_time import time
from ddlprof.model.manifest import SUBNORMAL_GRADIENTS, SUBNORMAL_STATES
from ddlprof.operators.parameters import parameters_of
from ddlprof.torch_private import engine

_OPTIMIZERS, _PARAMETERS = 4, 16
"""At how many optimizers it looks, and at how many of their parameters, the largest ones: a millisecond for all."""
_FIRST_UPDATE = 16
"""Before this one it does not look, as the first steps are looked at in many other ways."""
_SIDE, _TIMES = 64, 5
"""The rows and columns of the matrices of samples, and how often products of them are timed."""
SMALL = 1e-30
"""What is smaller has products with others below 1.2e-38, the smallest float32 with all digits."""
PARAMETERS = "parameters"


class Subnormal(NamedTuple):
    """Subnormal numbers among the values of one kind of tensors."""

    of: str = ""
    """What they are; empty: the processor takes such numbers for zero."""
    share: float = 0.0
    """The share of values other than zero below `SMALL`."""
    times: float = 1.0
    """How many times as long a product of these values takes as one of others, on this processor."""


class Subnormals:
    """What was seen at the looks of the training thread between two steps, ever more rarely."""

    def __init__(self) -> None:
        self.found: Subnormal | None = None
        """Those that slow the training down most, at the last look; None: nobody looked."""
        self._optimizers: dict[int, weakref.ref[Any]] = {}

    def update(self, optimizer: Any) -> None:
        """Called with each optimizer that begins an update in the first steps."""
        if len(self._optimizers) < _OPTIMIZERS:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def look(self, updates: int) -> None:
        """Looks once, after so many updates. Call it in the training thread: each has its own switch for them."""
        torch: Any = sys.modules["torch"]
        if updates < _FIRST_UPDATE or engine.dispatch_modes(torch)():  # which would see what we compute
            return
        if sys.float_info.min * 0.5 == 0.0:  # the processor takes such numbers for zero, as it was told to
            self.found = Subnormal()
            return
        with engine.no_torch_function(torch), torch.no_grad():
            of = {kind: _sample(torch, tensors) for kind, tensors in self._tensors().items()}
            plain = torch.full((_SIDE, _SIDE), 0.7, dtype=torch.float32, device="cpu")
            weights = plain if of[PARAMETERS] is None else of[PARAMETERS]
            looked = [
                Subnormal(kind, _share(values), _slower(values, plain, *with_))
                for kind, with_ in ((SUBNORMAL_GRADIENTS, (torch.mm, weights)), (PARAMETERS, (torch.mm, plain)),
                                    (SUBNORMAL_STATES, (torch.mul, plain)))
                if (values := of[kind]) is not None
            ]  # fmt: skip
        self.found = max(looked, key=lambda each: each.times, default=None)

    def _tensors(self) -> dict[str, list[Any]]:
        optimizers = [optimizer for ref in self._optimizers.values() if (optimizer := ref()) is not None]
        owned = [(each, optimizer) for optimizer in optimizers for each in parameters_of(optimizer)]
        largest = sorted(owned, key=lambda each: -int(each[0].numel()))[:_PARAMETERS]
        return {
            SUBNORMAL_GRADIENTS: [parameter.grad for parameter, _ in largest],
            PARAMETERS: [parameter for parameter, _ in largest],
            SUBNORMAL_STATES: [
                state for each, optimizer in largest for state in optimizer.state.get(each, {}).values()
            ],
        }


def _sample(torch: Any, tensors: list[Any]) -> Any:
    """Some values of all of these tensors, as a square; None if there are too few."""
    plain = [each.detach() for each in tensors if engine.in_one_piece(each) and each.dtype == torch.float32]
    stride = sum(int(tensor.numel()) for tensor in plain) // (_SIDE * _SIDE)
    if not stride:
        return None
    values = torch.cat([tensor.view(-1)[::stride] for tensor in plain])
    return values[: _SIDE * _SIDE].view(_SIDE, _SIDE)


def _share(values: Any) -> float:
    return float(((values != 0) & (values.abs() < SMALL)).float().mean())


def _slower(values: Any, plain: Any, product: Callable[[Any, Any], Any], other: Any) -> float:
    """How many times as long a product of these values takes as one of plain numbers."""
    return _least_ns(lambda: product(values, other)) / max(1, _least_ns(lambda: product(plain, plain)))


def _least_ns(work: Callable[[], Any]) -> int:
    took = []
    for _ in range(_TIMES):
        begin = time.perf_counter_ns()
        work()
        took.append(time.perf_counter_ns() - begin)
    return min(took)
