"""Times of steps of several ways to train, taken in turns so that what else the machine does meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

Way = TypeVar("Way")
_WARM_UP = 3
_BLOCK = 4
"""Steps that are timed together: the first after another way finds its data out of the cache."""
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 25


def interleaved(
    ways: Mapping[Way, Callable[[], object]],
    budget_s: float,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Way, float]:
    """Seconds that one step of each way takes, the median over blocks. Ends after `budget_s`, but not before three."""
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for step in ways.values():
        for _ in range(_WARM_UP):
            step()
    wait()
    times: dict[Way, list[float]] = {way: [] for way in ways}
    begin = clock()
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and clock() - begin > budget_s:
            break
        for way, step in ways.items():
            before = clock()
            for _ in range(_BLOCK):
                step()
            wait()
            times[way].append((clock() - before) / _BLOCK)
    return {way: statistics.median(each) for way, each in times.items()}


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Computes with that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
