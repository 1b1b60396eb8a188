"""Sets of time spans as sorted arrays, and their unions and intersections. All times are integers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


class Spans(NamedTuple):
    """Spans that do not overlap, in ascending order."""

    begin: IntArray
    end: IntArray


def column(values: array[int] | Sequence[int], kind: Any = np.int64) -> NDArray[Any]:
    """Numbers as a numpy array. The array of an `array.array` shares its memory."""
    if isinstance(values, array) and len(values):
        return np.frombuffer(values, dtype=kind)
    return np.array(values, dtype=kind)


def empty() -> Spans:
    return Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def merged(begin: IntArray, end: IntArray, pause: int = 0) -> Spans:
    """The union of spans in any order. Spans at most `pause` apart are joined."""
    long_enough = end > begin
    begin, end = begin[long_enough], end[long_enough]
    if not len(begin):
        return empty()
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    apart = begin[1:] > reached[:-1] + pause
    return Spans(begin[np.concatenate([[True], apart])], reached[np.concatenate([apart, [True]])])


def union(*parts: Spans, pause: int = 0) -> Spans:
    """The union of several sets."""
    return merged(np.concatenate([p.begin for p in parts]), np.concatenate([p.end for p in parts]), pause)


def common(one: Spans, other: Spans) -> Spans:
    """The intersection of two sets."""
    if not len(one.begin) or not len(other.begin):
        return empty()
    points = np.concatenate([one.begin, other.begin, one.end, other.end])
    opened = len(one.begin) + len(other.begin)
    deltas = np.where(np.arange(len(points)) < opened, 1, -1)
    order = np.argsort(points, kind="stable")
    points, depth = points[order], np.cumsum(deltas[order])
    both = np.flatnonzero((depth[:-1] == 2) & (points[1:] > points[:-1]))
    return merged(points[both], points[both + 1])


def covered(spans: Spans, begin: IntArray, end: IntArray) -> IntArray:
    """For each window from `begin` to `end`, the length that the spans cover."""
    return _covered_until(spans, end) - _covered_until(spans, begin)


def _last_end(spans: Spans, time: IntArray) -> IntArray:
    """For each moment the end of the last span that began by then."""
    index = np.searchsorted(spans.begin, time, side="right")
    return np.concatenate([[np.iinfo(np.int64).min], spans.end])[index]


def _covered_until(spans: Spans, time: IntArray) -> IntArray:
    total = np.concatenate([[0], np.cumsum(spans.end - spans.begin)])
    index = np.searchsorted(spans.begin, time, side="right")
    last_end = _last_end(spans, time)
    return np.asarray(total[index] - np.where(last_end > time, last_end - time, 0))


def holds(spans: Spans, time: IntArray) -> NDArray[np.bool_]:
    """Whether each moment lies in a span. A span's end does not belong to it."""
    return np.asarray(_last_end(spans, time) > time)


def first_outside(spans: Spans, time: IntArray) -> IntArray:
    """For each moment the first one, not before it, that lies in no span."""
    return np.asarray(np.maximum(time, _last_end(spans, time)))


def by_priority(layers: Sequence[Spans], begin: IntArray, end: IntArray) -> list[IntArray]:
    """For each window, the length covered by each layer and by none before it; last, the length covered by none."""
    lengths = []
    above, claimed = empty(), np.zeros(len(begin), dtype=np.int64)
    for layer in layers:
        above = union(above, layer)
        reached = covered(above, begin, end)
        lengths.append(reached - claimed)
        claimed = reached
    return [*lengths, end - begin - claimed]
