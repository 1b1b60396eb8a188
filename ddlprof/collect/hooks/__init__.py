"""One file a hook: `install(...) -> uninstall`. Hooks tell the recorder what begins and ends; they decide nothing.

A wrapper calls the original whatever happens to us, and returns at once under `torch.compiler.is_compiling()`.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

Uninstall = Callable[[], None]

_DEPTH = 3
_MOST_ITEMS = 64
"""Of a container: a batch may be a list of a million strings."""


def replace(owner: Any, name: str, value: Any) -> Uninstall:
    """Sets an attribute of a module or class; the result puts the original back if nobody else replaced ours."""
    original = vars(owner)[name]
    setattr(owner, name, value)

    def restore() -> None:
        if vars(owner).get(name) is value:
            setattr(owner, name, original)

    return restore


def all_of(*uninstalls: Uninstall) -> Uninstall:
    """Undoes several installations, the last first."""

    def uninstall() -> None:
        for each in reversed(uninstalls):
            each()

    return uninstall


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """For work of ours in the training thread that has no result: what fails is not measured, and nothing else."""

    @functools.wraps(function)
    def attempt(*args: Any) -> None:
        try:
            function(*args)
        except Exception:
            return

    return attempt


def batch_size(value: Any, depth: int = 0) -> int | None:
    """Samples in a batch: the first dimension of the first tensor in it, else the length of a list; None if unknown.

    Looks at what is stored, by the containers' own methods: an object of the script's is not asked, as it may load,
    count or go on for ever when it is.
    """
    array = _array(value)
    if array is not None:
        return array[0] if array else None
    if depth < _DEPTH:
        for item in itertools.islice(_stored(value), _MOST_ITEMS):
            size = batch_size(item, depth + 1)
            if size is not None:
                return size
        if depth == 0 and issubclass(type(value), list):
            return list.__len__(value)
        if depth == 0 and issubclass(type(value), tuple):
            return tuple.__len__(value)
    return None


def _array(value: Any) -> tuple[int, ...] | None:
    """The first dimension, if it has any, of a tensor or an array of numpy's; None for anything else."""
    kind = type(value)  # `isinstance` would ask a lazy object for its class
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    if issubclass(kind, torch.Tensor):
        with torch._C.DisableTorchFunction():  # a subclass or mode of the script's would be asked
            return (int(value.size(0)),) if value.dim() else ()
    if numpy is not None and issubclass(kind, numpy.ndarray):
        shape: tuple[int, ...] = numpy.ndarray.shape.__get__(value)
        return shape[:1]
    return None


def _stored(value: Any) -> Iterator[Any]:
    """What a container holds, or the attributes of any other object."""
    kind = type(value)
    if issubclass(kind, dict):
        return iter(dict.values(value))
    for sequence in (list, tuple):
        if issubclass(kind, sequence):
            return sequence.__iter__(value)
    try:
        return iter(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return iter(())
