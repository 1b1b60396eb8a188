"""Zeros of one tensor: counted exactly, on its device, without waiting for it.

On a CPU the time goes into reading the tensor, so each value is read once. Converting to bool is the one comparison
with zero that torch makes at the memory's speed; `ne` and `count_nonzero` take up to ten times as long. That makes a
byte of 0 or 1 of each value, and up to 255 of these are added up within bytes, eight of them in one integer.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch

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
