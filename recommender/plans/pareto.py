"""Finds the points that are worth a look when two things should both be small, as time and cost of a plan."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other point beats in one coordinate without losing in the other.

    In order of the first coordinate. Of equal points only the first is on the front.
    """
    front: list[int] = []
    lowest = float("inf")
    for index in sorted(range(len(points)), key=lambda i: (*points[i], i)):
        if points[index][1] < lowest:
            front.append(index)
            lowest = points[index][1]
    return front
