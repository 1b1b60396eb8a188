"""Sums that are waited for at the end of a step only, and made together there: a small network has many small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch

from ddlprof.collect.sparsity.zeros import Counts

_TOGETHER = 16
"""Pairs of vectors whose products are made at once: a matrix product makes all others of these vectors as well."""
_LARGEST = 1 << 20
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
        at_once = max(1, min(_TOGETHER, _LARGEST // max(1, length)))
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
