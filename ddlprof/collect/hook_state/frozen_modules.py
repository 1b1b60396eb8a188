"""What is learnt of forwards without gradients while they run; what they are for is decided in `steps/frozen.py`."""

from __future__ import annotations

import weakref
from typing import Any

from ddlprof.collect.loader.batch import arguments_size, first_shape
from ddlprof.collect.steps.frozen import FrozenCalls, FrozenModule, Read
from ddlprof.operators.parameters import own_parameters
from ddlprof.torch_private.engine import no_torch_function

_MOST_SIZES = 32
"""A module called on more sizes of a batch in one mode is known by the mode alone from then on."""


class FrozenModules:
    """The modules that were called without gradients, and the parameters that were seen in forwards with them."""

    def __init__(self) -> None:
        self._trained: set[int] = set()
        self._seen_trained: weakref.WeakSet[Any] = weakref.WeakSet()
        self._modules: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
        self._last: FrozenCalls | None = None
        """The calls of the last forward, whose results nobody has read yet."""

    def trains(self, module: Any) -> None:
        """A module is called with gradients."""
        self._last = None
        if module in self._seen_trained:
            return
        self._seen_trained.add(module)
        with no_torch_function():
            self._trained.update(id(parameter) for parameter in own_parameters(module) if parameter.requires_grad)
        for other, known in self._modules.items():
            known.look(other, self._trained)

    def called(self, module: Any, arguments: Any) -> FrozenCalls:
        """A module is called without gradients."""
        known = self._modules.get(module)
        if known is None:
            known = self._modules[module] = _Known()
            known.look(module, self._trained)
        self._last = calls = known.calls(module.training, arguments)
        return calls

    def reads(self, dimensions: int, is_fraction: bool) -> None:
        """The host reads a tensor."""
        calls, self._last = self._last, None
        if calls is not None and calls.read is None:
            single = Read.LOSS if is_fraction else Read.COUNT
            calls.read = Read.VALUES if dimensions else single


class _Known:
    """A module, and its calls by mode and first dimension of what it is called on."""

    def __init__(self) -> None:
        self._module = FrozenModule()
        self._calls: dict[tuple[bool, int | None], FrozenCalls] = {}
        self._length = 0

    def look(self, module: Any, trained: set[int]) -> None:
        self._module.is_trained |= any(id(parameter) in trained for parameter in own_parameters(module))

    def calls(self, training_mode: bool, arguments: Any) -> FrozenCalls:
        first, *others = first_shape(arguments) or (None,)
        key = (training_mode, first if len(self._calls) < _MOST_SIZES else None)
        calls = self._calls.get(key)
        if calls is None:
            samples = arguments_size(arguments) if key[1] is not None else None
            calls = self._calls[key] = FrozenCalls(self._module, training_mode, samples)
        length = others[0] if others else 0
        # Tokens: one more than before, or only the new one where the others' keys and values are kept.
        follows = length == self._length + 1 > 1 or length == 1 < self._length
        calls.generates |= follows
        self._length = length
        return calls
