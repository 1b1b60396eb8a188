"""Reads the clocks of the other machines once, before the training, through the job's store.

Rank 0 and the first rank of each other machine exchange notes: what has arrived was sent before, which bounds from
both sides how far the two clocks are apart. The quickest of a few rounds counts, some tenths of a millisecond.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.model.records import ClockReading

ROUNDS = (8, 2)
"""The rounds with each machine of a few, and of many: a round takes about a millisecond."""
MANY_MACHINES = 32
_PATIENCE = timedelta(seconds=10)
_KEY = "ddlprof/clock"


def read_clocks(rank: int, store: Any, nodes: list[int]) -> list[ClockReading]:
    """Returns on rank 0 a reading for each other machine, elsewhere none.

    `nodes`: the machine of every rank, as the first rank on it.
    Raises an error of the store if a rank does not answer in time.
    """
    others = sorted({*nodes} - {0})
    rounds = ROUNDS[len(others) > MANY_MACHINES]
    if rank == 0:
        return [_ask(store, other, rounds) for other in others]
    if rank in others:
        for number in range(rounds):
            _wait(store, f"{_KEY}/{rank}/{number}/asked")
            store.set(f"{_KEY}/{rank}/{number}/answered", str(time.perf_counter_ns()))
    return []


def _ask(store: Any, other: int, rounds: int) -> ClockReading:
    least, greatest = [], []
    for number in range(rounds):
        asked_ns = time.perf_counter_ns()
        store.set(f"{_KEY}/{other}/{number}/asked", "")
        answer_ns = int(_wait(store, f"{_KEY}/{other}/{number}/answered"))
        answered_ns = time.perf_counter_ns()
        greatest.append(answer_ns - asked_ns)  # it was asked before it answered
        least.append(answer_ns - answered_ns)  # its answer is no younger than its arrival here
    return ClockReading(other, max(least), min(greatest))


def _wait(store: Any, key: str) -> bytes:
    store.wait([key], _PATIENCE)
    return bytes(store.get(key))
