"""Traces as Kineto writes them, made up: every time is chosen, so every class is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
GEMM = "ampere_sgemm_128x64_tn"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HOST, DEVICE = 100, 0
MAIN_THREAD, BACKWARD_THREAD, GLOO_THREAD = 100, 101, 102
COMPUTE_STREAM, COMM_STREAM = 7, 13


def event(cat: str, name: str, ts: float, dur: float, tid: int = MAIN_THREAD, **args: Any) -> Event:
    """A complete event; microseconds."""
    pid = DEVICE if cat in ("kernel", "gpu_memcpy", "gpu_memset") else HOST
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def mark(number: int, ts: float, dur: float) -> Event:
    """A step's range."""
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def update(ts: float, dur: float, name: str = "SGD") -> Event:
    """An optimizer's range."""
    return event("user_annotation", f"Optimizer.step#{name}.step", ts, dur)


def loading(ts: float, dur: float) -> Event:
    """The wait for a batch."""
    return event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts, dur)


def forward(ts: float, dur: float) -> Event:
    """An operator of a forward with gradients."""
    return event("cpu_op", "aten::linear", ts, dur, **{"Sequence number": 1, "Fwd thread id": 0})


def backward(ts: float, dur: float, tid: int = MAIN_THREAD) -> Event:
    """A function of a backward pass."""
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    return event("cpu_op", name, ts, dur, tid, **{"Sequence number": 1, "Fwd thread id": 1})


class Device:
    """Kernels with their launches."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._correlation = 0

    def run(
        self, name: str, launched: float, ts: float, dur: float, tid: int = COMPUTE_STREAM, thread: int = MAIN_THREAD,
        cat: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        """A kernel, or a copy, and the call that launched it."""
        self._correlation += 1
        joined = {"device": DEVICE, "stream": tid, "correlation": self._correlation, **args}
        call = event("cuda_runtime", "cudaLaunchKernel", launched, 1, thread, correlation=self._correlation)
        self.events += [call, event(cat, name, ts, dur, tid, **joined)]


def collective_args(size: int = 1000, ranks: int = 2) -> dict[str, Any]:
    """What torch writes beside NCCL's kernels."""
    return {
        "Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size, "dtype": "Float",
        "Group size": ranks, "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip


def write_trace(path: Path, events: list[Event], **beside: Any) -> Path:
    """Writes a trace, compressed if its name says so."""
    text = json.dumps({"schemaVersion": 1, **beside, "traceEvents": events, "traceName": path.name}, indent=1)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def of_rank(rank: int, world_size: int, backend: str = "nccl") -> dict[str, Any]:
    """What stands beside the events of a rank."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world_size, "ranks": list(range(world_size))}
    return {
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world_size, "pg_config": [group]},
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}] if backend == "nccl" else [],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "host_name": "node",
    }


def device_trace(late_us: float = 0, steps: int = 5, begin: float = 1_000_000) -> list[Event]:
    """Steps of 1000 µs: on the device 100 of waiting for data, 100 of copying, 500 of computing (200 forward, 200
    backward, 100 update), 200 of an all-reduce of 300, and 100 idle. With `late_us` the forward takes as much more,
    and the all-reduce, which ends when it did, as much less."""
    device, events = Device(), []
    for number in range(steps):
        at = begin + 1000 * number
        events += [mark(10 + number, at, 1000), loading(at, 100), update(at + 770, 20)]
        events += [forward(at + 140, 20), backward(at + 300, 200, BACKWARD_THREAD)]
        device.run("Memcpy HtoD (Pinned -> Device)", at + 95, at + 100, 100, cat="gpu_memcpy", bytes=8)
        device.run(GEMM, at + 150, at + 200, 200 + late_us)
        device.run(GEMM, at + 310, at + 400 + late_us, 200, thread=BACKWARD_THREAD)
        device.run(NCCL, at + 320, at + 500 + late_us, 300 - late_us, COMM_STREAM, BACKWARD_THREAD, **collective_args())
        device.run(GEMM, at + 780, at + 800, 100)
    return [*events, *device.events]


def host_trace(late_us: float = 0, steps: int = 5, begin: float = 1_000_000) -> list[Event]:
    """Steps of 10 ms on the CPU: 1 of waiting for data, 1 of nothing, 6 of computing (2 forward, 3 backward, 1 update),
    1 of waiting for an all-reduce of 2, and 1 of nothing. With `late_us` the forward takes as much more, and the
    all-reduce as much less."""
    events = []
    for number in range(steps):
        at = begin + 10_000 * number
        reduced = at + 6000 + late_us
        events += [
            mark(10 + number, at, 10_000), loading(at, 1000), forward(at + 500, 100),
            forward(at + 2000, 2000 + late_us),
            backward(at + 4000 + late_us, 3000), event("cpu_op", "c10d::allreduce_", reduced, 100),
            event("user_annotation", "gloo:all_reduce", reduced + 10, at + 8000 - reduced - 10, GLOO_THREAD,
                  **{"Input Dims": [[1000]], "Input type": ["float"]}),
            update(at + 8000, 1000),
        ]  # fmt: skip
    return events
