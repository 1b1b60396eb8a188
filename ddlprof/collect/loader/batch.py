"""How many samples are in a batch, whatever a script calls a batch.

Nothing of the user's is run for it: containers of known kinds are walked, a few items of each; of other objects only
the attributes that they hold are looked at, where no tensor class or mode of the script's hears it. What is lazy
(generators, loaders, mappings over files) stays closed.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ddlprof.collect.core import plain_size, set_tensor
from ddlprof.torch_private.engine import function_modes, no_torch_function

_DEPTH = 4
_ITEMS = 32
"""Looked at in one container."""


def know(torch: Any) -> None:
    """Called once torch is there: batches of nothing but its own tensors can be looked at without much ado."""
    modes = function_modes(torch)
    if modes is not None:
        set_tensor(torch.Tensor, modes)


def batch_size(batch: Any) -> int | None:
    """The first dimension of its tensors, or the length of its lists; None if it cannot be told."""
    size = plain_size(batch)
    if size is not None:
        return size
    with no_torch_function():
        return _batch_size(batch)


def _batch_size(batch: Any) -> int | None:
    if _is_tensor(batch):
        return _first_dimension(batch)
    parts = _parts(batch)
    if parts is None:
        return None
    if _is(batch, (list, tuple)):
        if _are_samples(parts):
            return len(batch)
        size = _common_size(parts)
        return len(batch) or None if size is None else size
    declared = _declared(batch)
    if declared is not None:
        return declared
    size = _common_size(parts)
    return next((len(part) for part in parts if _is(part, (list, tuple))), None) if size is None else size


def arguments_size(arguments: Sequence[Any]) -> int | None:
    """The size of a batch that is handed to a function as these arguments."""
    size = plain_size(arguments)
    if size is not None:
        return size
    if len(arguments) == 1:
        return batch_size(arguments[0])
    with no_torch_function():
        return _common_size(arguments[:_ITEMS])


def arguments_bytes(arguments: Sequence[Any]) -> int | None:
    """Bytes of the tensors in the arguments of a function; None if there are none, or too many to look at them all."""
    if len(arguments) > _ITEMS:
        return None
    with no_torch_function():
        sizes = [tensor.numel() * tensor.element_size() for tensor in _tensors(arguments)]
    return sum(sizes) if sizes else None


def arguments_tensors(arguments: Sequence[Any]) -> list[Any]:
    """The tensors among them, as far as they are looked at."""
    with no_torch_function():
        return list(_tensors(arguments))


def first_shape(value: Any) -> tuple[int, ...]:
    """The shape of the first tensor in it that has a dimension; empty if there is none."""
    with no_torch_function():
        tensors = iter((value,)) if _is_tensor(value) else _tensors(_parts(value) or ())
        shapes = (() if getattr(tensor, "is_nested", False) else tuple(map(int, tensor.shape)) for tensor in tensors)
        return next(filter(None, shapes), ())


def _is(value: Any, kinds: Any) -> bool:
    """`isinstance` without asking the object for its class, as a lazy one would then load."""
    return issubclass(type(value), kinds)


def _attributes(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if _is(held, dict) else {}


def _common_size(parts: Sequence[Any]) -> int | None:
    """The size of a batch by its parts: its tensors, or, as zip(*samples) makes them, lists of what each sample has."""
    sizes = [size for size in map(_first_dimension, _tensors(parts)) if size is not None]
    if _alike_sequences(parts) and all(len({*map(_kind, part)}) == 1 for part in parts):
        of_tensors = all(_is_tensor(item) for part in parts for item in part)
        if not of_tensors or len(set(sizes)) != 1:
            return len(parts[0])
    return sizes[0] if sizes else None


def _are_samples(parts: Sequence[Any]) -> bool:
    """Whether a list is one of samples: each has a plain value (a label, a file name) among what it holds."""
    held = [_parts(part) if _is(part, (dict, list, tuple)) else None for part in parts]
    if not parts or not all(held):
        return False
    if all(_is(part, dict) for part in parts):
        return all(any(_is_plain(item) for item in items or ()) for items in held)
    return _alike_sequences(parts) and all(any(map(_is_plain, part)) and len({*map(_kind, part)}) > 1 for part in parts)


def _alike_sequences(parts: Sequence[Any]) -> bool:
    lengths = {len(part) if _is(part, (list, tuple)) else 0 for part in parts}
    return len(lengths) == 1 and 0 not in lengths


def _is_plain(item: Any) -> bool:
    return _is(item, (str, bytes, int, float)) or (_is_tensor(item) and _first_dimension(item) is None)


def _kind(item: Any) -> Any:
    return type(item), len(item.shape) if _is_tensor(item) and not getattr(item, "is_nested", False) else 0


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor, by its type: an attribute may be anything, and a Python property may run anything."""
    shape = getattr(type(value), "shape", None)
    if shape is None or _is(value, type):
        return False
    return not _is(shape, property) or type(value).__module__.startswith(("tensordict", "torch", "jax"))


def _first_dimension(tensor: Any) -> int | None:
    if getattr(tensor, "is_nested", False):
        return int(tensor.size(0))
    return int(tensor.shape[0]) if tensor.shape else None


def _declared(value: Any) -> int | None:
    """The graphs in a batch of torch_geometric, whose tensors are those of all graphs together."""
    held = _attributes(_attributes(value).get("_store")).get("_num_graphs")
    return held if _is(held, int) else None


def _parts(value: Any) -> Sequence[Any] | None:
    """The parts of a container; None for what is none, or may do something when it is walked."""
    if _is(value, tuple):
        return tuple(value[:_ITEMS]) if type(value).__getitem__ is tuple.__getitem__ else None
    if _is(value, list):
        return value[:_ITEMS] if type(value).__getitem__ is list.__getitem__ else None
    if _is(value, UserDict):
        value = value.data
    if _is(value, dict):
        return list(islice(dict.values(value), _ITEMS))  # not through methods of a subclass
    held = _attributes(value)
    if _is(value, type) or callable(value) or not held:
        return None
    return [item for item in islice(dict.values(held), _ITEMS) if _is_tensor(item)]


def _tensors(parts: Sequence[Any], depth: int = 1) -> Iterator[Any]:
    for part in islice(parts, _ITEMS):
        if _is_tensor(part):
            yield part
        elif depth < _DEPTH:
            yield from _tensors(_parts(part) or (), depth + 1)
