"""Times of steps of several ways to train, taken in turns so that what else the machine does meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
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
    clock: Callable[[], float] | None = None,
) -> dict[Way, float]:
    """Seconds that one step of each way takes, the median over blocks. Ends after `budget_s`, but not before three.

    Of one thread on a CPU it is processor time: what others do on the machine is left out.
    """
    if clock is None:
        clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
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


def with_threads(number: int, step: Callable[[], object]) -> Callable[[], None]:
    """The step, computed with that many threads."""

    def stepped() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(number)
        try:
            step()
        finally:
            torch.set_num_threads(before)

    return stepped
