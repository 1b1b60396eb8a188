"""Counts the zeros of a tensor exactly, on its device and without waiting for it, and adds up such counts.

On a CPU the time goes into reading the tensor, so each value is read once. Converting to bool is the only comparison
with zero that torch makes at the speed of memory; `ne` and `count_nonzero` take up to ten times as long. The result is
a byte of 0 or 1 for each value. Up to 255 bytes are added up within bytes, eight of them in one integer.

Sums are fetched only at the end of a step, all together, as a small network has many small ones. Trainings on CPUs keep
small tensors until then, because counting between two operators of the training would find cold caches and take ten
times as long. Tensors that the script may overwrite before the end of the step are counted at once.
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
"""The number of values that are counted at once, whose bytes fit a processor's cache."""
_BYTE = 255
_LANES = 8
_MOST_PARTS = 64
_FOUR = 4
_KEPT_OF_FOUR = 2


class Counts(NamedTuple):
    """The number of nonzeros by (sample, group, place ...), in partial sums that `whole` adds up."""

    raw: Any
    """Partial sums as bytes of the form (rows, parts, places); several bytes may be one integer."""
    rows: int
    parts: int
    shape: tuple[int, ...]
    """(samples, groups, places ...), or with `last` the groups at the end."""
    last: bool = False

    def whole(self) -> Any:
        """The counts by (sample, group, place ...), as small integers."""
        counts = self.raw.view(torch.uint8).view(self.rows, self.parts, -1)
        counts = (counts.sum(1, dtype=torch.int32) if self.parts > 1 else counts).view(self.shape)
        return counts.movedim(-1, 1) if self.last else counts


class Structure(NamedTuple):
    """Zeros that come together in a tensor of the form (samples, groups, features of a group, places ...)."""

    column_filled: Any
    """By (group, feature): whether any value of the column is not zero."""
    fours: int
    fitting_fours: Any
    """The number of groups of four neighbouring features with two zeros or more; None if not counted."""


def nonzeros(tensor: Any, groups: int = 1) -> Counts:
    """Counts nonzeros.

    `tensor`: (samples, features, places ...); its features are those of `groups` groups in a row.
    """
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
    """Looks for zeros that come together; reads the tensor once more."""
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
    """Counts the ones among bytes or bools of 0 and 1. NaN counts as not zero."""
    samples, features, *places = shape = ones.shape
    if ones.is_contiguous():
        how = _sum_layout(shape, groups)
        return Counts(_added(ones, how), how.rows, how.parts, (samples, groups, *places))
    last = ones.movedim(1, -1)
    if last.is_contiguous():  # channels last
        how = _sum_layout((samples * math.prod(places), features), groups)
        return Counts(_added(last, how), how.rows, how.parts, (samples, *places, groups), last=True)
    return _of_ones(ones.contiguous(), groups)


class _SumLayout(NamedTuple):
    """How the bytes of a tensor are added up."""

    form: tuple[int, ...]
    """(rows, parts, features, bytes); the sum is over the features."""
    rows: int
    parts: int
    lanes: bool
    """Whether bytes are added as integers of eight."""


@functools.lru_cache(maxsize=1000)
def _sum_layout(shape: tuple[int, ...], groups: int) -> _SumLayout:
    features, places = shape[1] // groups, math.prod(shape[2:])
    rows = shape[0] * groups
    together = _LANES if places % _LANES else 1
    """The number of features taken together, so that their places fill whole integers."""
    if features % together == 0 and features > together:
        several = features // together
        for parts in range(-(-several // _BYTE), _MOST_PARTS):
            if several % parts == 0:
                return _SumLayout((rows, parts, several // parts, together * places), rows, parts * together, True)
    return _SumLayout((rows, 1, features, places), rows, -(-features // _BYTE), False)


def _added(ones: Any, how: _SumLayout) -> Any:
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
"""The number of pairs of vectors multiplied at once. More would waste work, as a matrix product multiplies all
pairs."""
_LARGEST_TOGETHER = 1 << 20
"""The largest number of values in the vectors that are taken together."""


@dataclass(frozen=True, eq=False)
class Inner:
    """The scalar product of two vectors of counts, or the sum of one if `b` is None. By samples, of one group."""

    a: Counts
    b: Counts | None = None


class Term(NamedTuple):
    """A whole number: `plus` + `times` * `sum`."""

    sum: Any
    """An `Inner`, or a tensor with one number."""
    times: int = 1
    plus: int = 0


Values = dict[str, Any]
"""By the names of fields of `LayerCounts`: what to add to them, as numbers or terms."""

_Piece = tuple[Any, Any, list[tuple[int, int]]]
"""A device, a vector of doubles on it, and which sums are where in it."""


def numbers(values: list[Any]) -> list[int]:
    """The values as whole numbers. All sums on a device are fetched together."""
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
    """Products of vectors of one length with each other and with ones. Exact in doubles."""
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
    """The row of each vector in a matrix of doubles, and the matrix. Its last row is all ones."""
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
"""The most bytes kept for the end of the step. More would need new memory."""
_LARGEST_SAVED = 8 << 20
"""The largest input kept until the backward of its layer, in bytes. Autograd keeps it too, except with
checkpointing."""


class Look(NamedTuple):
    """The counts of one tensor."""

    values: int
    counts: Counts
    structure: Structure | None


def look(tensor: Any, features: int, places: int, groups: int, with_structure: bool) -> Look:
    """Counts a tensor of the form (... samples ..., features, places ...), with `places` dimensions of places."""
    if tensor.dim() != places + 2:
        tensor = tensor.reshape(-1, features, *tensor.shape[tensor.dim() - places :])
    found = structure(tensor, groups) if with_structure else None
    return Look(tensor.numel(), nonzeros(tensor, groups), found)


class KeptTensor(NamedTuple):
    """A tensor that is kept for the end of the step, and what shows whether it was changed."""

    tensor: Any
    size: int
    """The size in bytes."""
    version: int
    address: int

    @property
    def is_unchanged(self) -> bool:
        """Whether the tensor still has the same version, which writing to it changes, and the same address."""
        return version_of(self.tensor) == self.version and self.tensor.data_ptr() == self.address


def keep(tensor: Any, is_saved: bool) -> KeptTensor | None:
    """Keeps a tensor; None if it must not be kept. `is_saved`: backward of the layer needs it as well."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu:  # on a device, another stream may write to it
        return None
    size = tensor.numel() * tensor.element_size()
    if size > (_LARGEST_SAVED if is_saved else LARGEST):
        return None
    return KeptTensor(tensor, size, version_of(tensor), tensor.data_ptr())
