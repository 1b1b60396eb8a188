"""Where a model can be divided between its layers: the bytes that pass from one to the next, and what each keeps."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from ddlprof.model.operators import Layer

if TYPE_CHECKING:
    from ddlprof.operators.trace_memory import Storages
    from ddlprof.operators.trace_operators import OperatorCall


def with_cuts(
    layers: Sequence[Layer],
    weights: Sequence[Iterable[int]],
    calls: Sequence[OperatorCall],
    storages: Storages,
    saved: Iterable[int],
) -> tuple[Layer, ...]:
    """The layers with `input_bytes` and `saved_bytes`. `weights`: the storages of each layer's parameters.

    The model can be divided before a layer if forward reads no weight of it or a later layer before it has read the
    last one of the layers before: not within layers that share a weight. What passes is what was made before and is
    still read, at the operator between the two where that is least.
    """
    forward = [call for call in calls if call.phase == "forward"]
    readers = _readers(weights, forward, storages)
    crossing = _crossing(forward, storages)
    cuts: dict[int, int] = {}
    ends = list(accumulate((max(each, default=-1) for each in readers), max))
    begins = list(accumulate((min(each, default=len(forward)) for each in reversed(readers)), min))[::-1]
    for number in range(1, len(layers)):
        before, begin = ends[number - 1], begins[number]
        if before < begin < len(forward):
            cuts[number] = min(range(before + 1, begin + 1), key=lambda at: (crossing[at], -at))
    kept = _kept([0, *cuts.values()], forward, storages, saved)
    bytes_of = dict(zip([0, *cuts], kept, strict=True))
    return tuple(
        replace(layer, input_bytes=float(crossing[cuts[number]]) if number in cuts else None,
                saved_bytes=bytes_of.get(number, 0.0))
        for number, layer in enumerate(layers)
    )  # fmt: skip


def _readers(weights: Sequence[Iterable[int]], forward: Sequence[OperatorCall], storages: Storages) -> list[list[int]]:
    """For each layer the operators of forward that read a weight of it, or a copy of one in another type."""
    owner = {storage: layer for layer, each in enumerate(weights) for storage in each}
    found: list[list[int]] = [[] for _ in weights]
    for number, call in enumerate(forward):
        read = {owner.get(storage) for access in call.reads if (storage := storages.weight(access.storage)) is not None}
        for layer in read - {None}:
            found[layer].append(number)  # type: ignore[index]
    return found


def _crossing(forward: Sequence[OperatorCall], storages: Storages) -> list[int]:
    """For each operator of forward the bytes that were made before it and are read by it or later; no weights."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, call in enumerate(forward):
        for access in call.reads:
            if storages.weight(access.storage) is None:
                made.setdefault(access.storage, -1)  # the batch
                last[access.storage] = number
        for access in call.writes:
            made.setdefault(access.storage, number)
    changes = [0] * (len(forward) + 1)
    for storage, until in last.items():
        changes[made[storage] + 1] += storages.all[storage].bytes
        changes[until + 1] -= storages.all[storage].bytes
    now, found = 0, []
    for change in changes[:-1]:
        now += change
        found.append(now)
    return found


def _kept(
    begins: Sequence[int], forward: Sequence[OperatorCall], storages: Storages, saved: Iterable[int]
) -> list[float]:
    """The bytes of `saved` that were made between each of `begins` and the next."""
    made: dict[int, int] = {}
    for number, call in enumerate(forward):
        for access in call.writes:
            made.setdefault(access.storage, number)
    found: Counter[int] = Counter()
    for storage in saved:
        if storage in made:
            found[max(bisect_right(begins, made[storage]) - 1, 0)] += storages.all[storage].bytes
    return [float(found[number]) for number in range(len(begins))]
