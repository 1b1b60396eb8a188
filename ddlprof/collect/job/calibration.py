"""What is measured between the ranks once, before the training: transfers inside a machine, and how far the clocks of
machines are apart.

Times of collectives among the ranks of one machine say what the same transfer would take if all ranks shared it.

The group is made of the job's own store, apart from torch.distributed's list of groups, so the names and numbers of
the script's groups are what they would be without us. Everything has a time-out, and any failure means no calibration.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.model.records import Calibration, ClockReading
from ddlprof.operators.parallel import backend_of
from ddlprof.torch_private.collectives import all_gather, reduce_scatter

LADDER_BYTES = (4096, 65_536, 524_288, 2_097_152, 8_388_608)
SMALL_BYTES = 65_536
REPEATS = (20, 6)
"""The repeats of the small rungs, where waking up varies most, and of the others; the first of each is not counted."""
BUDGET_S = 0.7
"""No further rung is begun past this; the last one takes some 0.1 s on slow machines."""
_PATIENCE = timedelta(seconds=10)
_NODE_KEY = "ddlprof/node"
_NODES_KEY = "ddlprof/nodes"


def exchange_nodes(dist: Any, store: Any, node_id: str) -> list[int]:
    """The machine of every rank, by rank: the first rank on it. Raises an error of the store if a rank is late.

    Rank 0 gathers and tells all: it serves the store alone, so requests must not grow with the square of the ranks.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    store.set(f"{_NODE_KEY}/{rank}", node_id)
    if rank == 0:
        keys = [f"{_NODE_KEY}/{each}" for each in range(world)]
        store.wait(keys, _PATIENCE)
        first: dict[bytes, int] = {}
        nodes = [first.setdefault(node, each) for each, node in enumerate(store.multi_get(keys))]
        store.set(_NODES_KEY, json.dumps(nodes))
        return nodes
    store.wait([_NODES_KEY], _PATIENCE)
    told: list[int] = json.loads(store.get(_NODES_KEY))
    return told


def calibrate(dist: Any, torch: Any, store: Any, nodes: list[int]) -> list[Calibration]:
    """The ladders of this machine's ranks, empty where it holds one rank or does not use gloo on the host."""
    rank = dist.get_rank()
    here = [each for each, node in enumerate(nodes) if node == nodes[rank]]
    if len(here) < 2 or "gloo" not in (backend := backend_of(dist)) or "nccl" in backend:
        return []
    prefix = dist.PrefixStore(f"ddlprof/calibration/{here[0]}", store)
    group = dist.ProcessGroupGloo(prefix, here.index(rank), len(here), _PATIENCE)
    begin = time.perf_counter()
    rungs = []
    for size in LADDER_BYTES:
        for op, run in _collectives(torch, group, size // 4, len(here)).items():
            durations = [_duration_ns(run) for _ in range(REPEATS[size > SMALL_BYTES])]
            rungs.append(Calibration(len(here), size, sorted(durations[1:])[(len(durations) - 1) // 2], op))
        # All ranks must go on or stop together: they agree on the sum of what each has spent.
        spent = torch.tensor([time.perf_counter() - begin])
        group.allreduce([spent]).wait()
        if float(spent) > BUDGET_S * len(here):
            break
    return rungs


def _collectives(torch: Any, group: Any, length: int, ranks: int) -> dict[str, Callable[[], Any]]:
    """Each operation on `length` numbers, of which a rank holds its part where the operation has parts."""
    part = torch.zeros(length // ranks)
    whole = torch.zeros(len(part) * ranks)
    return {
        "allreduce": lambda: group.allreduce([whole]),
        "allgather": lambda: all_gather(group, whole, part),
        "reducescatter": lambda: reduce_scatter(group, part, whole),
    }


def _duration_ns(run: Callable[[], Any]) -> int:
    begin = time.perf_counter_ns()
    run().wait()
    return time.perf_counter_ns() - begin


CLOCK_ROUNDS = (8, 2)
"""The rounds with each machine of a few, and of many: a round takes about a millisecond."""
MANY_MACHINES = 32
_CLOCK_KEY = "ddlprof/clock"


def read_clocks(rank: int, store: Any, nodes: list[int]) -> list[ClockReading]:
    """Reads the clocks of the other machines through the job's store: on rank 0 a reading for each, elsewhere none.

    Rank 0 and the first rank of each other machine exchange notes: what has arrived was sent before, which bounds from
    both sides how far the two clocks are apart. The quickest of a few rounds counts, some tenths of a millisecond.

    `nodes`: the machine of every rank, as the first rank on it.
    Raises an error of the store if a rank does not answer in time.
    """
    others = sorted({*nodes} - {0})
    rounds = CLOCK_ROUNDS[len(others) > MANY_MACHINES]
    if rank == 0:
        return [_ask(store, other, rounds) for other in others]
    if rank in others:
        for number in range(rounds):
            _wait(store, f"{_CLOCK_KEY}/{rank}/{number}/asked")
            store.set(f"{_CLOCK_KEY}/{rank}/{number}/answered", str(time.perf_counter_ns()))
    return []


def _ask(store: Any, other: int, rounds: int) -> ClockReading:
    least, greatest = [], []
    for number in range(rounds):
        asked_ns = time.perf_counter_ns()
        store.set(f"{_CLOCK_KEY}/{other}/{number}/asked", "")
        answer_ns = int(_wait(store, f"{_CLOCK_KEY}/{other}/{number}/answered"))
        answered_ns = time.perf_counter_ns()
        greatest.append(answer_ns - asked_ns)  # it was asked before it answered
        least.append(answer_ns - answered_ns)  # its answer is no younger than its arrival here
    return ClockReading(other, max(least), min(greatest))


def _wait(store: Any, key: str) -> bytes:
    store.wait([key], _PATIENCE)
    return bytes(store.get(key))
