"""How many samples are in a batch, whatever a script calls a batch.

This runs no code of the user's: it walks containers of known kinds, a few items of each, and reads only the attributes
that other objects hold, with `__torch_function__` of the script's tensor classes and modes disabled. Lazy objects
(generators, loaders, mappings over files) are not read.

The first dimension is not always the number of samples. So two other sources are used before it: the loader, which
knows how many samples it draws for a batch, and the layers inside a model that take [time, batch, features], as nn.LSTM
and nn.Transformer do by default.
"""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ddlprof.collect.core import plain_size, set_tensor
from ddlprof.torch_private.engine import function_modes, no_torch_function
from ddlprof.torch_private.loader import batch_sampler

_DEPTH = 4
_ITEMS = 32
"""The most items of a container that are inspected."""


def know(torch: Any) -> None:
    """Called once torch is imported: gives the core what its fast path for batches of plain tensors needs."""
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
    if is_tensor(batch):
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
    """The tensors in the arguments of a function, among the first items of each container."""
    with no_torch_function():
        return list(_tensors(arguments))


def first_shape(value: Any) -> tuple[int, ...]:
    """The shape of the first tensor in it that has a dimension; empty if there is none."""
    with no_torch_function():
        tensors = iter((value,)) if is_tensor(value) else _tensors(_parts(value) or ())
        shapes = (() if getattr(tensor, "is_nested", False) else tuple(map(int, tensor.shape)) for tensor in tensors)
        return next(filter(None, shapes), ())


def _is(value: Any, kinds: Any) -> bool:
    """`isinstance` without reading `__class__` of the object, which would make a lazy object load."""
    return issubclass(type(value), kinds)


def _attributes(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if _is(held, dict) else {}


def _common_size(parts: Sequence[Any]) -> int | None:
    """The size of a batch from its parts: tensors, or lists with one item per sample, as zip(*samples) makes them."""
    sizes = [size for size in map(_first_dimension, _tensors(parts)) if size is not None]
    if _alike_sequences(parts) and all(len({*map(_kind, part)}) == 1 for part in parts):
        of_tensors = all(is_tensor(item) for part in parts for item in part)
        if not of_tensors or len(set(sizes)) != 1:
            return len(parts[0])
    return sizes[0] if sizes else None


def _are_samples(parts: Sequence[Any]) -> bool:
    """Whether the parts are samples: each is a container with a plain value in it, such as a label or a file name."""
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
    return _is(item, (str, bytes, int, float)) or (is_tensor(item) and _first_dimension(item) is None)


def _kind(item: Any) -> Any:
    return type(item), len(item.shape) if is_tensor(item) and not getattr(item, "is_nested", False) else 0


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor, judged by its type only: reading an attribute or property may run any code."""
    shape = getattr(type(value), "shape", None)
    if shape is None or _is(value, type):
        return False
    return not _is(shape, property) or type(value).__module__.startswith(("tensordict", "torch", "jax"))


def _first_dimension(tensor: Any) -> int | None:
    if getattr(tensor, "is_nested", False):
        return int(tensor.size(0))
    return int(tensor.shape[0]) if tensor.shape else None


def _declared(value: Any) -> int | None:
    """The number of graphs in a batch of torch_geometric, whose tensors join the nodes of all graphs."""
    held = _attributes(_attributes(value).get("_store")).get("_num_graphs")
    return held if _is(held, int) else None


def _parts(value: Any) -> Sequence[Any] | None:
    """The parts of a container; None if `value` is no container, or if walking it might run code."""
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
    return [item for item in islice(dict.values(held), _ITEMS) if is_tensor(item)]


def _tensors(parts: Sequence[Any], depth: int = 1) -> Iterator[Any]:
    for part in islice(parts, _ITEMS):
        if is_tensor(part):
            yield part
        elif depth < _DEPTH:
            yield from _tensors(_parts(part) or (), depth + 1)


class SamplesPerBatch(NamedTuple):
    """How many samples a loader draws from its data set for one batch."""

    samples: int
    last: int | None
    """The number of samples in an epoch's last batch; None if it is not known."""


def drawn_by(iterator: Any) -> SamplesPerBatch | None:
    """How many samples a loader's iterator draws for each batch; None if the number is not fixed or not known."""
    try:
        batches = batch_sampler(iterator)
        samples = getattr(batches, "batch_size", None)
        if type(samples) is not int or samples < 1:
            return None
    except Exception:  # internals of another torch version
        return None
    try:
        last = samples if batches.drop_last else (len(batches.sampler) - 1) % samples + 1
    except Exception:  # an iterable data set has no length
        last = None
    return SamplesPerBatch(samples, last)


def loaded_samples(batch: Any, size: int | None, drawn: SamplesPerBatch | None) -> int | None:
    """The number of samples in a batch that a loader gave; `size` is the number that its shape suggests.

    If `size` is smaller than the number drawn, this is the end of an epoch or the share of one rank. If it is larger,
    it counts something else, such as the nodes of graphs or the words of texts laid end to end. If a single sample was
    drawn, `size` is taken, because that sample may be a whole batch.
    """
    if drawn is None or drawn.samples == 1 or size == drawn.samples:
        return size
    if size is None:
        return drawn.samples
    second = first_shape(batch)[1:2]
    if size > drawn.samples:
        return drawn.last if second == (drawn.last,) else drawn.samples
    if second == (drawn.samples,):  # [time, batch]
        return drawn.samples
    laid_end_to_end = size == 1 and drawn.last not in (None, 1)
    return drawn.samples if laid_end_to_end else size


class ForwardSamples:
    """Counts samples in the inputs of outermost modules; learns from inner layers which dimension is the batch."""

    def __init__(self) -> None:
        self.is_learned = False
        """Whether some module was found whose input has its batch in the second dimension."""
        self._second: weakref.WeakSet[Any] = weakref.WeakSet()
        self._outer: weakref.ref[Any] | None = None
        self._shape: tuple[int, ...] = ()

    def begin(self, module: Any, args: Any, kwargs: Any, size: int | None, learn: bool = True) -> int | None:
        """The number of samples in the input of an outermost module that is about to run.

        `size`: the number that the first dimension suggests. `learn`: `inside` will be called for the layers inside.
        """
        try:
            second = module in self._second
            if not learn and not second:  # its shape would tell nothing more
                return size
            self._outer, self._shape = weakref.ref(module), first_shape((args, kwargs))
            return self._shape[1] if second and len(self._shape) > 1 else size
        except Exception:  # whatever a user's input type does
            return size

    def end(self) -> None:
        """Called when the outermost module has returned."""
        self._outer, self._shape = None, ()

    def inside(self, layer: Any, args: Any) -> None:
        """Called for each inner layer; one with `batch_first=False` shows whether the input has its batch there too."""
        if getattr(layer, "batch_first", None) is not False or len(self._shape) < 2 or not args:
            return
        try:
            module = self._outer() if self._outer is not None else None
            if module is not None and self._shape[0] != self._shape[1] == _second_dimension(args[0]):
                self._second.add(module)
                self.is_learned = True
        except Exception:  # a layer of the user's that has an attribute of that name
            return


def _second_dimension(value: Any) -> int | None:
    """The batch size in the input of a layer that takes [time, batch, features], packed or not."""
    counts = getattr(value, "batch_sizes", None)  # nn.utils.rnn.PackedSequence
    if counts is not None:
        return int(counts[0])
    return int(value.shape[1]) if len(value.shape) == 3 else None
