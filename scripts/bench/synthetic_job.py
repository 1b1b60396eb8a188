"""Writes the run directory of a large DDP job that never ran, for benchmarks of what reads one.

Ranks jitter, one of them is slow, buckets queue and end when the last rank has come, clocks of machines differ: the
files look as those of a real job do, a step of 300 ms with ten all-reduces, and are made in seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ddlprof.model import codec
from ddlprof.model.blocks import LAYOUTS, STEP, encode_block
from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import (
    MISSING,
    Calibration,
    CollectiveShape,
    ContextRow,
    End,
    Overhead,
    RankHeader,
)

IntArray: TypeAlias = NDArray[np.int64]

ORIGIN_UNIX_NS = 1_767_261_600_000_000_000
BUCKETS = 10
FORWARD_US, BACKWARD_US, OPTIMIZER_US = 80_000, 160_000, 15_000
TRANSFER_US = 20_000
SLOW_US = 9_000
"""What the slow rank waits longer for its data."""
CLOCK_SPREAD_NS = 4_000_000
_NOT_MEASURED = 2**32 - 1
_STEPS_A_BLOCK = 4
"""About those of a second."""


def write_job(directory: Path, ranks: int, steps: int, nodes: int, seed: int = 0) -> None:
    """A run of `ranks` ranks on `nodes` machines, all of them complete."""
    random = np.random.default_rng(seed)
    start_us, data_us, compute_us, times = _simulate(random, ranks, steps)
    per_node = -(-ranks // nodes)
    clock_ns = random.integers(-CLOCK_SPREAD_NS, CLOCK_SPREAD_NS, nodes)
    shapes = [CollectiveShape("0", "allreduce", 25 << 20, ranks)] * BUCKETS
    folder = directory / "attempt-0"
    folder.mkdir(parents=True)
    for rank in range(ranks):
        node = rank // per_node
        # Every machine counts time from its own boot, and its unix clock is off by a little.
        header = RankHeader(rank, ranks, rank % per_node, 0, f"node{node:03}", f"node{node:03}/boot", 1000 + rank,
                            "NVIDIA A10G", "device", 10**12 * (node + 1),
                            ORIGIN_UNIX_NS + int(clock_ns[node] - clock_ns[0]))  # fmt: skip
        rows = _rows(start_us[:, rank], data_us[:, rank], compute_us[:, rank], times[rank])
        seconds = int(rows[-1, 1] + rows[-1, 2]) // 10**9
        calibration = [Calibration(per_node, 1 << bits, 20_000 + (1 << bits) // 10) for bits in range(10, 27, 4)]
        text = [codec.encode_header(header), codec.encode_signature(0, shapes), *map(codec.encode, calibration)]
        text += [_once_a_second(second) for second in range(seconds)]
        text += [codec.encode(End("ok", 0, int(rows[-1, 1] + rows[-1, 2])))]
        (folder / f"rank-{rank}.jsonl").write_text("".join(text), encoding="utf-8")
        (folder / f"rank-{rank}.steps").write_bytes(_blocks(rows, times[rank]))
    Manifest(
        name="synthetic", argv=["train.py"], job_id="synthetic", created_unix_ns=ORIGIN_UNIX_NS, world_size=ranks,
        origin_unix_ns=ORIGIN_UNIX_NS, model=ModelFacts("ResNet", 54, 161, 25_557_032, 102_228_128),
        training=TrainingFacts("SGD", 32, 32 * ranks, 1, "fp32", "ddp", "nccl", loader_workers=1),
    ).write(directory)  # fmt: skip


def _simulate(random: np.random.Generator, ranks: int, steps: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Start, data and compute of each step and rank, and the four times of each rank's collectives; microseconds."""
    start, data, compute = (np.zeros((steps, ranks), dtype=np.int64) for _ in range(3))
    times = np.zeros((ranks, steps, BUCKETS, 4), dtype=np.uint32)
    now = random.integers(0, 200_000, ranks)
    slow = ranks // 3
    for step in range(steps):
        start[step] = now
        data[step] = random.integers(500, 3000, ranks) + SLOW_US * (np.arange(ranks) == slow)
        speed = random.normal(1, 0.01, ranks).clip(0.9, 1.2)
        backward_begin = now + data[step] + (FORWARD_US * speed).astype(np.int64)
        backward_end = backward_begin + (BACKWARD_US * speed).astype(np.int64)
        end = 0
        for bucket in range(BUCKETS):
            ready = backward_begin + (backward_end - backward_begin) * (bucket + 1) // BUCKETS
            last = max(end, int(ready.max()))
            exposed_from = np.maximum(backward_end, end)
            end = last + TRANSFER_US + int(random.integers(0, 1000))
            seen = end + random.integers(0, 30, ranks)
            exposed = np.maximum(end - exposed_from, 0)
            times[:, step, bucket] = np.stack([ready - now, seen - now, backward_end - now, exposed], axis=1)
        compute[step] = backward_end - now - data[step] + OPTIMIZER_US
        now = np.maximum(backward_end, end) + OPTIMIZER_US + random.integers(100, 600, ranks)
    return start, data, compute, times  # type: ignore[return-value]


def _rows(start_us: IntArray, data_us: IntArray, compute_us: IntArray, times: IntArray) -> IntArray:
    """The numbers of a step, a row a step, in nanoseconds that add up."""
    steps = len(start_us)
    start, data, compute = start_us * 1000, data_us * 1000 + 7, compute_us * 1000 + 123
    comm = times[:, :, 3].sum(axis=1, dtype=np.int64) * 1000
    other = np.full(steps, 350_000)
    number = np.arange(steps)
    columns = [number, start, data + compute + comm + other, compute, data, data // 2, data // 4, comm, other,
               number * BUCKETS]  # fmt: skip
    return np.stack(columns, axis=1)


def _blocks(rows: IntArray, times: IntArray) -> bytes:
    """The file of steps: a block for each second."""
    names = (
        "step",
        "start_ns",
        "step_ns",
        "compute_ns",
        "data_ns",
        "data_fetch_ns",
        "data_prep_ns",
        "comm_ns",
        "other_ns",
    )
    layout = LAYOUTS[STEP.decode()]
    table = np.zeros(len(rows), dtype=[(name, f"<{letter}") for name, letter in layout])
    for name, values in zip(names, rows.T, strict=False):
        table[name] = values
    for name in ("compute_forward_ns", "compute_backward_ns", "compute_optimizer_ns", "rollout_ns", "device_lag_ns"):
        table[name] = _NOT_MEASURED
    table["peak_memory_bytes"] = MISSING
    table["microbatches"], table["samples"], table["first_seqs"], table["collectives"] = 1, 32, 1, BUCKETS
    seqs, packed = rows[:, -1].astype("<i8"), times.astype("<u4")
    found = []
    for number, begin in enumerate(range(0, len(rows), _STEPS_A_BLOCK)):
        here = slice(begin, begin + _STEPS_A_BLOCK)
        each = table[here]
        found.append(
            encode_block(
                STEP,
                number,
                (len(each), len(each), BUCKETS * len(each)),
                each.tobytes() + seqs[here].tobytes() + packed[here].tobytes(),
            )
        )
    return b"".join(found)


def _once_a_second(second: int) -> str:
    counters = ContextRow(second * 10**9, 35.0 + second % 7, 200 << 30, 4 << 30, 93.0, 18 << 30, 250.0)
    looking = Overhead(second * 200_000, second * 3, second * 5_000_000, (second + 1) * 10**9)
    return codec.encode(counters) + codec.encode(looking)
