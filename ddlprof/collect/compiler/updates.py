"""Finds the updates that happened inside compiled code, where no optimizer hook runs: what an update changes has moved.

Tensors count the changes made to them in place. An optimizer with a state (moments, step counts) has made an update
where that has moved: fused kernels do not count what they change in parameters, and a script may clip or average
parameters too. One without a state, such as plain SGD, has made one where parameters have moved.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from ddlprof.torch_private.engine import no_torch_function, version_of, version_or_none

_GROUPS = 4
"""Parameter groups that are looked at, from both ends, and in each of them the first, middle and last parameter."""

_Signature = tuple[list[Any], list[int]]


class Watch:
    """Watches optimizers from the state they had when it was made; keeps none of them alive."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._before: weakref.WeakKeyDictionary[Any, _Signature | None] = weakref.WeakKeyDictionary()
        for optimizer in optimizers:
            self.look(optimizer)

    def look(self, optimizer: Any) -> None:
        """Takes what happens from now on for an update of the optimizer."""
        self._before[optimizer] = _signature(optimizer)

    def updated(self, optimizers: Iterable[Any]) -> list[Any]:
        """The optimizers that have made an update since the last look at them."""
        return [optimizer for optimizer in optimizers if self._has_updated(optimizer)]

    def _has_updated(self, optimizer: Any) -> bool:
        before = self._before.get(optimizer)
        if before is None:
            return False
        self.look(optimizer)
        now = self._before[optimizer]
        if now is None or before == now:
            return False
        (state_before, parameters_before), (state, parameters) = before, now
        return state != state_before if state else parameters != parameters_before


def _signature(optimizer: Any) -> _Signature | None:
    """State and parameters of some of what it updates; None where it is not built as torch's optimizers are."""
    try:
        with no_torch_function():  # tensor classes of the script's are not asked
            parameters = list(_some_parameters(optimizer.param_groups))
            state = [_version(value) for p in parameters for value in optimizer.state.get(p, {}).values()]
            return state, [version_of(p) for p in parameters]
    except Exception:
        return None


def _some_parameters(groups: list[dict[str, Any]]) -> Iterator[Any]:
    for group in groups if len(groups) <= _GROUPS else groups[: _GROUPS // 2] + groups[-_GROUPS // 2 :]:
        parameters = group["params"]
        for index in sorted({0, len(parameters) // 2, len(parameters) - 1}):
            if parameters and parameters[index].requires_grad:
                yield parameters[index]


def _version(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else version_or_none(value)
