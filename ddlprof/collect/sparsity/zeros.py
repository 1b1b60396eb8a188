"""Zeros of one tensor: counted exactly, on its device, without waiting for it; and sums of these counts.

On a CPU the time goes into reading the tensor, so each value is read once. Converting to bool is the one comparison
with zero that torch makes at the memory's speed; `ne` and `count_nonzero` take up to ten times as long. That makes a
byte of 0 or 1 of each value, and up to 255 of these are added up within bytes, eight of them in one integer.

Sums are waited for at the end of a step only, and made together there: a small network has many small ones. Between two
operators of a training nothing of ours is in a processor's caches: the smallest operator then takes ten times as long
as right after another one. So hooks of a training on CPUs keep small tensors, and all of them are looked at in a row,
when the step is over. What the script may have filled anew by then is looked at before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch

from ddlprof.torch_private.engine import version_of

_AT_ONCE = 1 << 21
"""Values that are looked at at once: their bytes stay in a processor's cache."""
_BYTE = 255
_LANES = 8
_MOST_PARTS = 64
_FOUR = 4
_KEPT_OF_FOUR = 2


class Counts(NamedTuple):
    """How many values are not zero, by (sample, group, place ...), not quite added up: that is left to `whole`."""

    raw: Any
    """Bytes of the form (rows, parts, places), maybe several in one integer."""
    rows: int
    parts: int
    shape: tuple[int, ...]
    """Samples, groups, places ..., or with `last` the groups at the end."""
    last: bool = False

    def whole(self) -> Any:
        """By (sample, group, place ...): whole numbers of a small kind."""
        counts = self.raw.view(torch.uint8).view(self.rows, self.parts, -1)
        counts = (counts.sum(1, dtype=torch.int32) if self.parts > 1 else counts).view(self.shape)
        return counts.movedim(-1, 1) if self.last else counts


class Structure(NamedTuple):
    """Zeros that come together, in a tensor of the form (samples, groups, features of a group, places ...)."""

    column_filled: Any
    """By (group, feature): whether some value of the column is not zero."""
    fours: int
    fitting_fours: Any
    """Groups of four neighbouring features with two zeros or more; None where that was not looked at."""


def nonzeros(tensor: Any, groups: int = 1) -> Counts:
    """`tensor`: (samples, features, places ...), its features those of `groups` groups one after the other."""
    if tensor.numel() <= _AT_ONCE:
        return _of_ones(tensor.bool(), groups)
    parts = [_of_ones(part.bool(), groups) for part in _parts(tensor)]
    samples = len(tensor)
    return parts[0]._replace(
        raw=torch.cat([each.raw for each in parts]),
        rows=sum(each.rows for each in parts),
        shape=(samples, *parts[0].shape[1:]),
    )


def structure(tensor: Any, groups: int = 1) -> Structure:
    """Reads the tensor once more."""
    features = tensor.shape[1] // groups
    with_fours = features % _FOUR == 0
    columns, fitting = [], []
    for part in _parts(tensor):
        ones = part.bool().view(torch.uint8).reshape(*part.shape[:2], -1).contiguous()
        samples, channels, places = ones.shape
        column = _of_ones(ones.view(1, samples, channels * places), 1).whole()
        columns.append(column.view(channels, places).amax(1) != 0)
        if with_fours:
            together = ones.view(samples, channels // _FOUR, _FOUR, places).sum(2, dtype=torch.uint8)
            fitting.append((together <= _KEPT_OF_FOUR).sum())
    return Structure(
        torch.stack(columns).any(0).view(groups, features),
        tensor.numel() // _FOUR if with_fours else 0,
        torch.stack(fitting).sum() if with_fours else None,
    )


def _parts(tensor: Any) -> Any:
    return tensor.split(max(1, _AT_ONCE // max(1, tensor[:1].numel())))


def _of_ones(ones: Any, groups: int) -> Counts:
    """Of bytes or bools of 0 and 1. Not a number is not zero."""
    samples, features, *places = shape = ones.shape
    if ones.is_contiguous():
        how = _way(shape, groups)
        return Counts(_added(ones, how), how.rows, how.parts, (samples, groups, *places))
    last = ones.movedim(1, -1)
    if last.is_contiguous():  # channels last
        how = _way((samples * math.prod(places), features), groups)
        return Counts(_added(last, how), how.rows, how.parts, (samples, *places, groups), last=True)
    return _of_ones(ones.contiguous(), groups)


class _Way(NamedTuple):
    """How bytes are added up."""

    form: tuple[int, ...]
    """Rows, parts, features, bytes: the sum is over the features."""
    rows: int
    parts: int
    lanes: bool
    """Whether the bytes are taken as integers of eight."""


@functools.lru_cache(maxsize=1000)
def _way(shape: tuple[int, ...], groups: int) -> _Way:
    features, places = shape[1] // groups, math.prod(shape[2:])
    rows = shape[0] * groups
    together = _LANES if places % _LANES else 1
    """Features that come as one, so that their places fill whole integers."""
    if features % together == 0 and features > together:
        several = features // together
        for parts in range(-(-several // _BYTE), _MOST_PARTS):
            if several % parts == 0:
                return _Way((rows, parts, several // parts, together * places), rows, parts * together, True)
    return _Way((rows, 1, features, places), rows, -(-features // _BYTE), False)


def _added(ones: Any, how: _Way) -> Any:
    ones = ones.view(how.form)
    if how.lanes:
        return ones.view(torch.int64).sum(2)
    ones = ones.view(torch.uint8)
    if how.form[2] == 1:
        return ones.squeeze(2)
    if how.parts == 1:
        return ones.sum(2, dtype=torch.uint8)
    return torch.cat([part.sum(2, dtype=torch.uint8) for part in ones.split(_BYTE, 2)], 1)


_TOGETHER = 16
"""Pairs of vectors whose products are made at once: a matrix product makes all others of these vectors as well."""
_LARGEST_TOGETHER = 1 << 20
"""Values of the vectors that are taken together."""


@dataclass(frozen=True, eq=False)
class Inner:
    """The sum of products of two vectors of counts; without `b`, the sum of one. By samples, of one group."""

    a: Counts
    b: Counts | None = None


class Term(NamedTuple):
    """A whole number: `plus`, and `times` as much as a sum."""

    sum: Any
    """An Inner, or a tensor of one number."""
    times: int = 1
    plus: int = 0


Values = dict[str, Any]
"""Fields of `LayerCounts` and what to add to them: numbers or terms."""

_Piece = tuple[Any, Any, list[tuple[int, int]]]
"""A device, a vector of doubles on it, and where in it which sums are."""


def numbers(values: list[Any]) -> list[int]:
    """The values as whole numbers. All sums of a device are fetched at once."""
    sums = {id(value.sum): value.sum for value in values if isinstance(value, Term)}
    pieces: dict[Any, list[Any]] = {}
    places: dict[Any, dict[int, int]] = {}
    sizes: dict[Any, int] = {}
    for device, piece, within in chain(_alone(sums), _products(sums)):
        begin = sizes.get(device, 0)
        pieces.setdefault(device, []).append(piece)
        places.setdefault(device, {}).update((key, begin + place) for key, place in within)
        sizes[device] = begin + len(piece)
    found: dict[int, int] = {}
    for device, every in pieces.items():
        fetched = (every[0] if len(every) == 1 else torch.cat(every)).tolist()
        found.update((key, round(fetched[place])) for key, place in places[device].items())
    return [value.plus + value.times * found[id(value.sum)] if isinstance(value, Term) else value for value in values]


def _alone(sums: dict[int, Any]) -> Iterator[_Piece]:
    found: dict[Any, dict[int, Any]] = {}
    for key, each in sums.items():
        if isinstance(each, torch.Tensor):
            found.setdefault(each.device, {})[key] = each
    for device, tensors in found.items():
        yield device, torch.stack(list(tensors.values())).double(), [(key, place) for place, key in enumerate(tensors)]


def _products(sums: dict[int, Any]) -> Iterator[_Piece]:
    """Of vectors of one length: their products with each other and with ones, exact in doubles."""
    found: dict[tuple[Any, int], list[int]] = {}
    for key, each in sums.items():
        if isinstance(each, Inner):
            found.setdefault((each.a.raw.device, each.a.rows), []).append(key)
    for (device, length), keys in found.items():
        at_once = max(1, min(_TOGETHER, _LARGEST_TOGETHER // max(1, length)))
        for begin in range(0, len(keys), at_once):
            some = keys[begin : begin + at_once]
            vectors = {id(each): each for key in some for each in (sums[key].a, sums[key].b) if each is not None}
            rows, matrix = _matrix(vectors)
            rows[id(None)] = len(rows)
            within = [(key, rows[id(sums[key].a)] * len(rows) + rows[id(sums[key].b)]) for key in some]
            yield device, (matrix @ matrix.T).flatten(), within


def _matrix(vectors: dict[int, Counts]) -> tuple[dict[int, int], Any]:
    """The row of each vector in a matrix of doubles, and the matrix; its last row is of ones."""
    alike: dict[Any, list[int]] = {}
    for key, each in vectors.items():
        alike.setdefault((each.parts, each.raw.dtype), []).append(key)
    parts = []
    for (count, _), keys in alike.items():
        rows = vectors[keys[0]].rows
        bytes_of = torch.stack([vectors[key].raw for key in keys]).view(torch.uint8).view(len(keys), rows, count)
        parts.append(bytes_of.sum(2, dtype=torch.float64))
    parts.append(torch.ones_like(parts[0][:1]))
    return {key: row for row, key in enumerate(chain(*alike.values()))}, torch.cat(parts)


LARGEST = 256 << 10
MOST = 32 << 20
"""Bytes of what a call keeps for the end of the step, and of what all calls do: more would cost new memory."""
_LARGEST_SAVED = 8 << 20
"""Bytes of an input that waits for the backward of its layer. Autograd keeps it as well, unless it is checkpointed."""


class Look(NamedTuple):
    """What is known of a tensor."""

    values: int
    counts: Counts
    structure: Structure | None


def look(tensor: Any, features: int, places: int, groups: int, with_structure: bool) -> Look:
    """`tensor`: (... samples ..., features, places ...), with `places` dimensions of places."""
    if tensor.dim() != places + 2:
        tensor = tensor.reshape(-1, features, *tensor.shape[tensor.dim() - places :])
    found = structure(tensor, groups) if with_structure else None
    return Look(tensor.numel(), nonzeros(tensor, groups), found)


class Kept(NamedTuple):
    """A tensor that waits, and how to see that nobody has changed it."""

    tensor: Any
    size: int
    """In bytes."""
    version: int
    address: int

    @property
    def is_unchanged(self) -> bool:
        """Writing to the tensor changes its version, another storage its address."""
        return version_of(self.tensor) == self.version and self.tensor.data_ptr() == self.address


def keep(tensor: Any, is_saved: bool) -> Kept | None:
    """None where the tensor must not wait. `is_saved`: backward of the layer needs it, too."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu:  # on a device, another stream may write to its memory
        return None
    size = tensor.numel() * tensor.element_size()
    if size > (_LARGEST_SAVED if is_saved else LARGEST):
        return None
    return Kept(tensor, size, version_of(tensor), tensor.data_ptr())
