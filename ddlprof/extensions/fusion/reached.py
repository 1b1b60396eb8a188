"""The plain values that a forward or a loss can see: a recording holds for these only.

A loss that counts its calls, or whose weight the batches set at each epoch, computes something else later. What is
looked at: attributes of modules with a class of the user's, and globals, closures and attributes that their forwards,
the loss and what these call refer to.
"""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_ITEMS = 64
"""The most items of a container that are looked at. Counts and weights are in small ones, data are not."""
_DEEPEST = 6
_NOT_THE_USERS = frozenset({"torch", "numpy", "ddlprof", *sys.stdlib_module_names})
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}


class Reached:
    """What forwards of a model can see, with the functions that are given each time."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [each for each in model.modules() if _is_users(type(each))]

    def values(self, *functions: Any) -> Hashable:
        """The values as they are now, which can be compared."""
        found: list[Hashable] = []
        seen: set[int] = set()
        for each in (*functions, *self._modules):
            _visit(each, found, seen, 0)
        return tuple(found)


def _is_users(named: Any) -> bool:
    return str(getattr(named, "__module__", None)).partition(".")[0] not in _NOT_THE_USERS


def _visit(value: Any, found: list[Hashable], seen: set[int], depth: int) -> None:
    if isinstance(value, _PLAIN):
        found.append(value)
        return
    if id(value) in seen or depth > _DEEPEST:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        found.append((id(value), value._version))
    elif isinstance(value, itertools.count):
        found.append(repr(value))
    elif isinstance(value, random.Random):
        found.append(value.getstate())
    elif hasattr(value, "bit_generator"):
        found.append(str(value.bit_generator.state))
    for each in _inner(value):
        _visit(each, found, seen, depth + 1)


def _inner(value: Any) -> Iterator[Any]:
    """What the value holds, or refers to."""
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        if len(value) <= _MOST_ITEMS:
            yield from value.values() if isinstance(value, Mapping) else value
        yield len(value)
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, FunctionType):
        if _is_users(value):
            yield from _referred(value)
    elif isinstance(value, nn.Module):
        yield from (each for name, each in vars(value).items() if name not in _OF_MODULES)
        yield type(value).forward
    elif not isinstance(value, ModuleType):
        yield from getattr(value, "users_functions", ())
        if _is_users(value if isinstance(value, type) else type(value)):
            yield from (each for name, each in getattr(value, "__dict__", {}).items() if not name.startswith("__"))
            if not isinstance(value, type):
                yield inspect.getattr_static(value, "__call__", None)


def _referred(function: Callable[..., Any]) -> Iterator[Any]:
    """Globals, attributes of modules, closures and defaults that a function of Python refers to."""
    assert isinstance(function, FunctionType)
    names = _names(function.__code__)
    for name in names:
        each = function.__globals__.get(name)
        if isinstance(each, ModuleType):
            if each.__name__.partition(".")[0] not in _NOT_THE_USERS:
                yield from (getattr(each, inner, None) for inner in names)
        else:
            yield each
    yield from map(_content, function.__closure__ or ())
    yield function.__defaults__
    yield function.__kwdefaults__


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


@cache
def _names(code: CodeType) -> tuple[str, ...]:
    """The names that the code and functions within it use."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return tuple(dict.fromkeys(itertools.chain(code.co_names, *inner)))
