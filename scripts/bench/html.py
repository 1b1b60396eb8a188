"""How long the page of a long run takes, how much memory, and how large it is: 100,000 steps x 8 ranks.

The run is synthetic and is written by the real writer, as ranks do: two machines, DDP, five buckets, one rank whose
loader is slow, jitter, evaluations, checkpoints, and single steps that take long. It prints Markdown for
docs/benchmarks.md.
Limits: 5 s of processor time, 1 GB, and 3 MB for the page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import ContextRow, End, Flag, Overhead, RankHeader, StepRow
from ddlprof.model.source_locations import SourceLocation
from ddlprof.writing.writer import FinishedStep, RankWriter
from scripts.bench.jobs import Limits, print_table, progress
from scripts.bench.merge import phases, run

RANKS, STEPS, QUICK_STEPS = 8, 100_000, 10_000
NODES = 2
BUCKETS = 5
BUCKET_BYTES = 20 << 20
MS = 1_000_000
LIMIT_S, LIMIT_MB, LIMIT_PAGE_MB = 5.0, 1000, 3.0
SLOW_RANK = 3
EPOCH_STEPS, CHECKPOINT_STEPS = 5_000, 12_500
_FLUSH_STEPS = 200
_SELF = ("-m", "scripts.bench.html")
"""This script, as a module: its folder holds a name of the standard library's."""
ORIGIN_UNIX_NS = 1_767_261_600_000_000_000


def write_run(directory: Path, ranks: int, steps: int, buckets: int = BUCKETS, seed: int = 0) -> None:
    """The run, rank by rank; what the ranks have in common is drawn first."""
    random = np.random.default_rng(seed)
    compute = (60 * MS * random.normal(1, 0.02, (steps, ranks)).clip(0.9, 1.3)).astype(np.int64)
    data = (random.gamma(2, 0.5, (steps, ranks)) * MS).astype(np.int64)
    data[:, SLOW_RANK % ranks] += 5 * MS
    data[random.integers(0, steps, 20), random.integers(0, ranks, 20)] += 400 * MS  # storage that hung
    other = (random.gamma(2, 0.3, (steps, ranks)) * MS).astype(np.int64)
    flags = np.zeros(steps, dtype=np.int64)
    flags[::EPOCH_STEPS] |= int(Flag.EPOCH_START)
    flags[EPOCH_STEPS - 1 :: EPOCH_STEPS] |= int(Flag.EVALUATION)
    flags[CHECKPOINT_STEPS - 1 :: CHECKPOINT_STEPS] |= int(Flag.CHECKPOINT)
    other[flags & int(Flag.EVALUATION) != 0] += 2_000 * MS
    other[flags & int(Flag.CHECKPOINT) != 0] += 900 * MS
    transfer = (4 * MS * random.normal(1, 0.1, (steps, buckets)).clip(0.7, 3)).astype(np.int64)
    share = (np.arange(buckets) + 1) / buckets
    # Since the start of the step, the same moment for all ranks: the last bucket of the step before has ended.
    backward_begin = data + compute // 3
    ready = backward_begin[:, :, None] + (compute * 3 // 5)[:, :, None] * share  # step, rank, bucket
    end = np.zeros((steps, buckets))
    for bucket in range(buckets):
        free = end[:, bucket - 1] if bucket else 0
        end[:, bucket] = np.maximum(ready[:, :, bucket].max(axis=1), free) + transfer[:, bucket]
    for rank in range(ranks):
        _write_rank(directory, rank, ranks, _Drawn(data, compute, other, flags, ready[:, rank].astype(np.int64),
                                                   end.astype(np.int64)))  # fmt: skip
        progress(f"rank {rank} written")
    Manifest(
        name="long", argv=["train.py"], job_id="long", created_unix_ns=ORIGIN_UNIX_NS, world_size=ranks,
        origin_unix_ns=ORIGIN_UNIX_NS, host={"instance_type": "g5.12xlarge"},
        model=ModelFacts("ResNet", 54, 161, 25_557_032, 102_228_128),
        training=TrainingFacts("SGD", 32, 32 * ranks, 1, "fp32", "ddp", "gloo", loader_workers=2),
    ).write(directory)  # fmt: skip


class _Drawn(SimpleNamespace):
    """The times of one rank's steps, in nanoseconds since the start of each."""

    def __init__(self, data: Any, compute: Any, other: Any, flags: Any, ready: Any, end: Any) -> None:
        super().__init__(data=data, compute=compute, other=other, flags=flags, ready=ready, end=end)


def _write_rank(directory: Path, rank: int, ranks: int, drawn: _Drawn) -> None:
    per_node = -(-ranks // NODES)
    node = rank // per_node
    header = RankHeader(rank, ranks, rank % per_node, 0, f"node{node}", f"node{node}/boot", 1000 + rank, "cpu", "host",
                        10**12 * (node + 1), ORIGIN_UNIX_NS)  # fmt: skip
    writer = RankWriter(header)
    writer.open(directory)
    columns = (drawn.data[:, rank], drawn.compute[:, rank], drawn.other[:, rank], drawn.flags)
    own_end = columns[0] + columns[1]
    last = np.maximum(drawn.end[:, -1], own_end)
    steps = zip(*(column.tolist() for column in (*columns, own_end, last, drawn.ready, drawn.end)), strict=True)
    now = second = 0
    place = SourceLocation("train.py:88 log", "logging")
    for number, (data, compute, other, flags, done, ended, ready, end) in enumerate(steps):
        comm = ended - done
        row = StepRow(number, now, data + compute + comm + other, compute, data, data * 7 // 10, data // 4, 0, comm,
                      other, 1, 32, flags)  # fmt: skip
        writer.step(FinishedStep(row, _collectives(number * len(end), now, done, ready, end, ranks), now, True))
        now += row.step_ns
        if now // 10**9 > second:
            second = now // 10**9
            writer.context(ContextRow(now, 60.0 + second % 9, 30 << 30, (4 << 30) + (second << 14), None, None, None))
            writer.samples(number, {place: 2})
        if number % _FLUSH_STEPS == 0:
            writer.flush()
    writer.context(Overhead(30_000 * number, number, 5 * MS * number // 100, now))
    writer.context(End("ok", 0, now))
    writer.close()


def _collectives(first: int, start: int, done: int, ready: list[int], end: list[int], ranks: int) -> list[Any]:
    """The buckets of a step; computing needs them from `done` on."""
    found = []
    for bucket, (issued, ended) in enumerate(zip(ready, end, strict=True)):
        begin = max(done, end[bucket - 1] if bucket else 0)
        found.append(
            SimpleNamespace(group="0", seq=first + bucket, op="allreduce", bytes=BUCKET_BYTES, ranks=ranks,
                            root=None, ready=start + issued, end=start + ended, need=start + done,
                            exposed=max(0, ended - begin))
        )  # fmt: skip
    return found


def main() -> int:
    """Exit code 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--buckets", type=int, default=BUCKETS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS:,} steps")
    parser.add_argument("--keep", type=Path, help="write the run and the page into this folder, and leave them there")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)  # what this script starts itself with,
    parser.add_argument("--phases", type=Path, help=argparse.SUPPRESS)  # like this
    arguments = parser.parse_args()
    steps = QUICK_STEPS if arguments.quick else arguments.steps
    if arguments.write:
        write_run(arguments.write, arguments.ranks, steps, arguments.buckets)
        return 0
    if arguments.phases:
        phases(arguments.phases, "html")
        return 0
    # In a process of its own, as everything that needs memory: a child's peak is never below its parent's size.
    print(run(str(Path(__file__).with_name("machine.py"))).output.strip())
    with tempfile.TemporaryDirectory() as folder:
        return measure(arguments.keep or Path(folder), arguments.ranks, steps, arguments.buckets)


def measure(folder: Path, ranks: int, steps: int, buckets: int) -> int:
    """Writes the run, measures its page, and prints the figures."""
    directory, page = folder / "run", folder / "page.html"
    if not directory.exists():
        progress(f"writing {ranks} ranks x {steps:,} steps")
        run(*_SELF, "--write", str(directory), "--ranks", str(ranks), "--steps", str(steps), "--buckets",
            str(buckets))  # fmt: skip
    size_mb = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6
    progress("page")
    done = run("-m", "ddlprof", "report", str(directory), "--format", "html", "-o", str(page))
    load_s, analyse_s, render_s = run(*_SELF, "--phases", str(directory)).output.split()
    page_mb = page.stat().st_size / 1e6
    headers = ["run", "collectives", "on disk MB", "page s (wall)", "s (CPU)", "load", "analyse", "render", "MB",
               "page MB"]  # fmt: skip
    print_table(headers, [[
        f"{ranks} ranks x {steps:,} steps", f"{ranks * steps * buckets:,}", f"{size_mb:.0f}", f"{done.wall_s:.1f}",
        f"{done.cpu_s:.1f}", load_s, analyse_s, render_s, f"{done.peak_mib * 1.048576:.0f}", f"{page_mb:.2f}",
    ]])  # fmt: skip
    limits = Limits()
    limits.at_most("page, seconds of processor time", done.cpu_s, LIMIT_S)
    limits.at_most("page, MB of memory", done.peak_mib * 1.048576, LIMIT_MB)
    limits.at_most("page, MB", page_mb, LIMIT_PAGE_MB)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
