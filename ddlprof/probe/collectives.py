"""Times collectives in a group of ranks: bandwidth of large ones, latency of small ones. Every rank calls this alike.

Bandwidths are bus bandwidths as nccl-tests count them: bytes over the busiest link.
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ddlprof.model.probed import Figure
from ddlprof.probe.device import Device

SMALL_BYTES = 4096
_LARGE_BYTES = {True: (2**24, 2**28), False: (2**20, 2**24)}
"""The sizes on GPUs and on processors; the last counts."""
_FLOAT_BYTES = 4
_MOST_REPEATS = 2000
_OPS = {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}


class Ranks(NamedTuple):
    """A group of ranks."""

    group: Any
    """The group; None is all ranks."""
    size: int
    scope: str
    """intra: inside one machine, inter: between machines."""


def collectives(device: Device, dist: Any, ranks: Ranks, seconds: float) -> Iterator[Figure]:
    """The figures of one group. An operation that the backend lacks is left out on all ranks."""
    backend = "nccl" if device.is_gpu else "gloo"
    sizes = (SMALL_BYTES, *_LARGE_BYTES[device.is_gpu])
    budget_s = seconds / (len(_OPS) * len(sizes))
    where = f"{ranks.size} ranks, {'one machine' if ranks.scope == 'intra' else 'between machines'}"
    for op, words in _OPS.items():
        for size in sizes:
            with suppress(RuntimeError, NotImplementedError, ValueError):  # alike on all ranks: not of this backend
                took_s = _mean_s(device, dist, ranks, _run(device, dist, ranks, op, size), budget_s)
                name = f"{backend}_{op}_{ranks.scope}"
                if size == SMALL_BYTES:
                    what = f"{backend} {words} of 4 KiB, {where}"
                    yield Figure("collectives", f"{name}_latency_us", what, 1e6 * took_s, "us")
                    continue
                factor = (2 if op == "allreduce" else 1) * (ranks.size - 1) / ranks.size
                key = f"{name}_gb_s" if size == sizes[-1] else f"{name}_{size >> 20}mib_gb_s"
                what = f"{backend} {words} of {size >> 20} MiB, {where}"
                yield Figure("collectives", key, what, factor * size / took_s / 1e9, "GB/s")


def one_flow(device: Device, dist: Any, peers: tuple[int, int], seconds: float) -> Iterator[Figure]:
    """One rank sends to another on another machine; called by these two only."""
    backend = "nccl" if device.is_gpu else "gloo"
    size = _LARGE_BYTES[device.is_gpu][-1]
    payload = device.torch.ones(size // _FLOAT_BYTES, device=device.place)
    first = dist.get_rank() == peers[0]

    def once() -> None:
        if first:
            dist.send(payload, peers[1])
        else:
            dist.recv(payload, peers[0])

    once()
    device.finish()
    begin, repeats = time.perf_counter(), 4
    for _ in range(repeats):
        once()
    device.finish()
    took_s = (time.perf_counter() - begin) / repeats
    what = f"{backend} send of {size >> 20} MiB from one machine to another"
    yield Figure("collectives", f"{backend}_send_inter_gb_s", what, size / took_s / 1e9, "GB/s")


def _run(device: Device, dist: Any, ranks: Ranks, op: str, size: int) -> Callable[[], object]:
    """A function that does the operation once; `size` is that of the whole, of which a rank holds its part."""
    torch = device.torch
    part = torch.ones(max(size // _FLOAT_BYTES // ranks.size, 1), device=device.place)
    whole = torch.ones(len(part) * ranks.size, device=device.place)
    if op == "allreduce":
        return lambda: dist.all_reduce(whole.fill_(1.0), group=ranks.group)
    if op == "allgather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=ranks.group)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=ranks.group)


def _mean_s(device: Device, dist: Any, ranks: Ranks, run: Callable[[], object], seconds: float) -> float:
    """Seconds of one operation: the slowest rank's mean over as many as fill the time. Ranks agree on how many."""
    for _ in range(2):  # connections are made in the first
        run()
    device.finish()
    repeats = min(max(int(seconds / max(_slowest(device, dist, ranks, run, 1), 1e-7)), 2), _MOST_REPEATS)
    return _slowest(device, dist, ranks, run, repeats)


def _slowest(device: Device, dist: Any, ranks: Ranks, run: Callable[[], object], repeats: int) -> float:
    """The longest mean of all ranks, on all of them."""
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    device.finish()
    took = device.torch.tensor([(time.perf_counter() - begin) / repeats], device=device.place)
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=ranks.group)
    return float(took)
