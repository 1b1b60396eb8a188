"""Measurements between the ranks before the training: transfers inside a machine, and offsets of the machines' clocks.

The times of collectives among ranks of one machine show how long a transfer would take if all ranks were on it.

The groups are made from the job's own store, outside of torch.distributed's list of groups, so names and numbers of the
script's groups do not change. Everything has a time-out. After any failure there is no calibration.
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
"""The number of repeats of small messages, whose times vary most, and of others. The first of each does not count."""
BUDGET_S = 0.7
"""Seconds after which no further size is measured. The last one takes some 0.1 s on slow machines."""
_PATIENCE = timedelta(seconds=10)
_NODE_KEY = "ddlprof/node"
_NODES_KEY = "ddlprof/nodes"


def exchange_nodes(dist: Any, store: Any, node_id: str) -> list[int]:
    """For each rank the first rank on the same machine. Raises an error of the store if a rank is late.

    Rank 0 collects the ids and sends all of them back: it serves the store alone, so the number of requests must not
    grow with the square of the ranks.
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
    """Times of collectives by size among the ranks of this machine.

    Empty if this machine has one rank, or the backend is not gloo on the host.
    """
    rank = dist.get_rank()
    here = [each for each, node in enumerate(nodes) if node == nodes[rank]]
    if len(here) < 2 or "gloo" not in (backend := backend_of(dist)) or "nccl" in backend:
        return []
    prefix = dist.PrefixStore(f"ddlprof/calibration/{here[0]}", store)
    group = dist.ProcessGroupGloo(prefix, here.index(rank), len(here), _PATIENCE)
    begin = time.perf_counter()
    points = []
    for size in LADDER_BYTES:
        for op, run in _collectives(torch, group, size // 4, len(here)).items():
            durations = [_duration_ns(run) for _ in range(REPEATS[size > SMALL_BYTES])]
            points.append(Calibration(len(here), size, sorted(durations[1:])[(len(durations) - 1) // 2], op))
        # all ranks must stop together, so they add up the time that each has used
        spent = torch.tensor([time.perf_counter() - begin])
        group.allreduce([spent]).wait()
        if float(spent) > BUDGET_S * len(here):
            break
    return points


def _collectives(torch: Any, group: Any, length: int, ranks: int) -> dict[str, Callable[[], Any]]:
    """Each operation on `length` numbers. Where an operation has parts, a rank holds its part."""
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
"""The rounds with each machine if there are few, and if there are many. A round takes about a millisecond."""
MANY_MACHINES = 32
_CLOCK_KEY = "ddlprof/clock"


def read_clocks(rank: int, store: Any, nodes: list[int]) -> list[ClockReading]:
    """Measures the clocks of the other machines through the job's store: readings on rank 0, an empty list elsewhere.

    Rank 0 and the first rank of each other machine exchange messages. A message was sent before it arrived, which
    bounds the difference of the two clocks from both sides, to some tenths of a millisecond. The quickest of a few
    rounds counts.

    `nodes`: for each rank the first rank on its machine. Raises an error of the store if a rank does not answer in
    time.
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
        greatest.append(answer_ns - asked_ns)  # the question was sent before the answer
        least.append(answer_ns - answered_ns)  # the answer was sent before it arrived here
    return ClockReading(other, max(least), min(greatest))


def _wait(store: Any, key: str) -> bytes:
    store.wait([key], _PATIENCE)
    return bytes(store.get(key))
