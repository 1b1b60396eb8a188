"""Times collectives in a group of ranks: bandwidth with large messages, latency with small ones.

The ranks are those of torchrun, or processes started here as
`python -m ddlprof.extensions.probe.collectives RANK WORLD FOLDER SECONDS`. All ranks make the same calls.

Bandwidths are bus bandwidths as nccl-tests defines them, the bytes over the busiest link in a second:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ddlprof.base.worker_processes import WorkerFailed, WorkerProcesses
from ddlprof.extensions.probe.device import ProbeDevice
from ddlprof.extensions.probe.model import Figure

SMALL_BYTES = 4096
_LARGE_BYTES = {True: (2**24, 2**28), False: (2**20, 2**24)}
"""The sizes in bytes on GPUs (True) and on processors. The last one gives the figure."""
_FLOAT_BYTES = 4
_MOST_REPEATS = 2000
_OPS = {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}


class Ranks(NamedTuple):
    """A group of ranks."""

    group: Any
    """torch's process group; None: all ranks."""
    size: int
    scope: str
    """intra: inside one machine, inter: between machines."""


def collectives(device: ProbeDevice, dist: Any, ranks: Ranks, seconds: float) -> Iterator[Figure]:
    """Measures the figures of one group. All ranks leave out an operation that the backend does not support."""
    backend = "nccl" if device.is_gpu else "gloo"
    sizes = (SMALL_BYTES, *_LARGE_BYTES[device.is_gpu])
    budget_s = seconds / (len(_OPS) * len(sizes))
    where = f"{ranks.size} ranks, {'one machine' if ranks.scope == 'intra' else 'between machines'}"
    for op, words in _OPS.items():
        for size in sizes:
            with suppress(RuntimeError, NotImplementedError, ValueError):  # raised on all ranks if the backend lacks it
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


def one_flow(device: ProbeDevice, dist: Any, peers: tuple[int, int], seconds: float) -> Iterator[Figure]:
    """Measures sending from one rank to another on another machine. Called by these two ranks only."""
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


def _run(device: ProbeDevice, dist: Any, ranks: Ranks, op: str, size: int) -> Callable[[], object]:
    """A function that does the operation once. `size`: bytes of the whole, of which each rank holds its part."""
    torch = device.torch
    part = torch.ones(max(size // _FLOAT_BYTES // ranks.size, 1), device=device.place)
    whole = torch.ones(len(part) * ranks.size, device=device.place)
    if op == "allreduce":
        return lambda: dist.all_reduce(whole.fill_(1.0), group=ranks.group)
    if op == "allgather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=ranks.group)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=ranks.group)


def _mean_s(device: ProbeDevice, dist: Any, ranks: Ranks, run: Callable[[], object], seconds: float) -> float:
    """Seconds of one operation, the same on all ranks: the slowest rank's mean over repeats that fill `seconds`."""
    for _ in range(2):  # the first makes connections
        run()
    device.finish()
    repeats = min(max(int(seconds / max(_slowest(device, dist, ranks, run, 1), 1e-7)), 2), _MOST_REPEATS)
    return _slowest(device, dist, ranks, run, repeats)


def _slowest(device: ProbeDevice, dist: Any, ranks: Ranks, run: Callable[[], object], repeats: int) -> float:
    """The longest mean of all ranks, in seconds; returned on all ranks."""
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    device.finish()
    took = device.torch.tensor([(time.perf_counter() - begin) / repeats], device=device.place)
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=ranks.group)
    return float(took)


_STARTUP_S = 90.0
"""Seconds allowed for starting Python and torch on a busy machine."""
_INTRA, _INTER = "intra", "inter"
_RESULT = "figures.json"
_ON_CPU = 2
"""The number of processes on a machine without GPUs."""


class RanksFailed(Exception):
    """Collectives could not be measured. The text is one sentence."""


def launched() -> bool:
    """Whether torchrun or the like started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)


def inside(device: ProbeDevice, seconds: float) -> list[Figure]:
    """Collectives between all GPUs of this machine, or between two processes on a CPU; empty with one GPU.

    Raises `RanksFailed`. Ends the processes that it starts.
    """
    world = device.torch.cuda.device_count() if device.is_gpu else _ON_CPU
    if world < 2:
        return []
    with tempfile.TemporaryDirectory(prefix="ddlprof-probe-") as folder:
        arguments = [[str(rank), str(world), folder, str(seconds)] for rank in range(world)]
        # One thread each on a processor: the ranks would take the cores from each other.
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        environment = {"OMP_NUM_THREADS": threads, "LOCAL_WORLD_SIZE": str(world)}
        with WorkerProcesses(
            "ddlprof.extensions.probe.collectives", arguments, environment, Path(folder, "log")
        ) as workers:
            wait_for(workers, seconds + _STARTUP_S)
        found = [Figure(**row) for row in json.loads(Path(folder, _RESULT).read_text(encoding="utf-8"))]
    if not found:
        raise RanksFailed("the backend did none of them")
    return found


class ProbeRanks:
    """The ranks that torchrun started. Raises `RanksFailed` if they do not find each other."""

    def __init__(self, torch: Any, seconds: float) -> None:
        """`seconds`: how long the first rank may measure while the others wait."""
        import torch.distributed as dist

        self.dist = dist
        try:
            dist.init_process_group(_backends(torch), timeout=timedelta(seconds=2 * seconds + 600))
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            mine = os.environ.get("GROUP_RANK", "0"), int(os.environ.get("LOCAL_RANK", "0"))
            self._places: list[Any] = [None] * self.world
            dist.all_gather_object(self._places, mine)
        except Exception as error:
            raise RanksFailed(f"the ranks did not find each other: {_line(str(error))}") from None
        self.nodes = sorted({node for node, _ in self._places})

    def wait(self) -> None:
        """Waits for all ranks without using a GPU."""
        import torch

        self.dist.all_reduce(torch.zeros(1))

    def figures(self, device: ProbeDevice, seconds: float) -> list[Figure]:
        """Figures inside the first machine and, with several machines, between them. Called by all ranks."""
        found: list[Figure] = []
        several = len(self.nodes) > 1
        members = [[rank for rank, (node, _) in enumerate(self._places) if node == each] for each in self.nodes]
        groups = [self.dist.new_group(ranks) for ranks in members]
        for ranks, group in zip(members, groups, strict=True):
            if self.rank in ranks and len(ranks) > 1:
                share = seconds / 3 if several else seconds
                found += collectives(device, self.dist, Ranks(group, len(ranks), _INTRA), share)
        if several:
            found += collectives(device, self.dist, Ranks(None, self.world, _INTER), seconds / 2)
            peers = (members[0][0], members[1][0])
            if self.rank in peers:
                found += one_flow(device, self.dist, peers, seconds / 6)
        self.wait()
        return found

    def close(self) -> None:
        """Leaves the group."""
        self.dist.destroy_process_group()


def _backends(torch: Any) -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def wait_for(workers: WorkerProcesses, timeout_s: float) -> None:
    """Waits until all workers have ended. Raises `RanksFailed` if one fails or they take longer than `timeout_s`."""
    try:
        workers.wait(timeout_s)
    except TimeoutError:
        raise RanksFailed(f"the processes did not finish within {timeout_s:.0f} s") from None
    except WorkerFailed as error:
        raise RanksFailed(f"a process failed: {_line(str(error) or 'no message')}") from None


def _line(text: str) -> str:
    """The beginning of a text as one line."""
    return " ".join(text.split())[:200]


def _main(rank: int, world: int, folder: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    device = ProbeDevice(torch, rank)
    dist.init_process_group(
        _backends(torch), init_method=f"file://{folder}/store", rank=rank, world_size=world,
        timeout=timedelta(seconds=seconds + _STARTUP_S),
    )  # fmt: skip
    figures = list(collectives(device, dist, Ranks(None, world, _INTRA), seconds))
    if rank == 0:
        text = json.dumps([asdict(figure) for figure in figures])
        Path(folder, _RESULT).write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
