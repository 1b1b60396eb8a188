"""Puts collectives whose durations are known onto the timeline of a device that does not say when they end.

The work of a process group is a queue on one stream of the device: one collective at a time. Where computation waited,
the last collective that it waited for ended when the wait did; each one before ended at the latest when the next one
of its group began. What is placed so is right where it matters, inside the waits, as they leave no gap between two
collectives; others are placed as late as they can have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def place(collectives: Sequence[Any], step_end: int) -> bool:
    """Sets ready, end and exposed time of the collectives of a step, which are in the order of issue.

    False, and nothing is changed, unless the duration of each is known. Raises nothing.
    """
    if not collectives or any(each.duration is None for each in collectives):
        return False
    waits = _waits(collectives)
    left = {need: end - need for need, end in waits.items()}
    begins: dict[str, int] = {}
    following: dict[str, Any] = {}
    for each in reversed(collectives):
        latest = begins.get(each.group, step_end)
        if each.need is not None:
            wait_end = waits[each.need]
            latest = min(latest, wait_end) if each.group in begins else wait_end
        begin = latest - each.duration
        each.end = latest
        if each.need is not None:
            claimed = max(0, min(left[each.need], latest - max(begin, each.need)))
            left[each.need] -= claimed
            each.exposed = claimed
        after = following.get(each.group)
        if after is not None and after.need is not None and after.ready == latest and after.need < latest:
            after.ready = min(after.ready, max(after.need, begin))  # it was there already, behind this one
        each.ready = begin
        begins[each.group], following[each.group] = begin, each
    return True


def _waits(collectives: Sequence[Any]) -> dict[int, int]:
    """When each wait for some of them began, and when it ended."""
    waits: dict[int, int] = {}
    for each in collectives:
        if each.need is not None:
            waits[each.need] = waits.get(each.need, each.need) + (each.exposed or 0)
    return waits
