"""How often rules speak of runs without a fault, and how often they find one of a known size in runs full of noise.

Runs are synthetic: 200 steps of 100 ms of one rank, or of two that wait for each other, whose classes vary from step to
step by a lognormal factor, with a slow step now and then. `python -m scripts.bench.diagnosis` prints Markdown for
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.run import analyse
from ddlprof.model import codec
from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import CollectiveShape, CollectiveTimes, ContextRow, End, Overhead, RankHeader, StepRow
from ddlprof.model.source_places import SLEEP, SourcePlace
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from ddlprof.writing.step_buffer import StepBuffer

STEPS, MS, GIB = 200, 1_000_000, 2**30
NOISE = 0.15
"""The standard deviation of the logarithm of each class's factor in a step."""
SPIKES = 0.01
WORKERS = 2
Floats = NDArray[np.float64]


class Job:
    """One job: milliseconds of each class by rank and step, and what counters said."""

    def __init__(self, random: np.random.Generator, ranks: int) -> None:
        self.random, self.ranks = random, ranks
        self.compute, self.data, self.other = self._noisy(86), self._noisy(3), self._noisy(2)
        self.comm_ms = 4.0 if ranks > 1 else 0.0
        self.leak_bytes = 0.0
        self.sleeping = False
        self.held = np.zeros(STEPS, dtype=bool)

    def _noisy(self, mean_ms: float) -> Floats:
        factor = self.random.lognormal(-(NOISE**2) / 2, NOISE, (self.ranks, STEPS))
        spikes = np.where(self.random.random((self.ranks, STEPS)) < SPIKES, 2.0, 1.0)
        return np.asarray(mean_ms * factor * spikes)

    def write(self, directory: Path) -> None:
        """The run directory."""
        own = self.compute + self.data + self.other
        slowest = own.max(axis=0)
        starts = np.concatenate([[0.0], np.cumsum(slowest + self.comm_ms)])
        for rank in range(self.ranks):
            wait = slowest - own[rank] + self.comm_ms
            rows, times = [], []
            for n in range(STEPS):
                parts = (self.compute[rank, n], self.data[rank, n], self.other[rank, n], wait[n])
                compute, data, other, comm = (round(each * MS) for each in parts)
                total, begin = compute + data + other + comm, round(starts[n] * MS)
                fetch, prep = round(data * 0.1), round(data * 0.8)
                rows.append(StepRow(n, begin, total, compute, data, fetch, prep, 0, comm, other, 1, 32, 0, 0, (n,)))
                arrived, end = round(own[rank, n] * 1000), round((own[rank, n] + wait[n]) * 1000)
                times.append(CollectiveTimes(arrived, end, arrived, end - arrived))
            self._write_rank(directory, rank, rows, times, starts)
        self._manifest().write(directory)

    def _write_rank(self, directory: Path, rank: int, rows: list[Any], times: list[Any], starts: Floats) -> None:
        folder = directory / "attempt-0"
        folder.mkdir(parents=True, exist_ok=True)
        head = RankHeader(rank, self.ranks, rank, 0, "host", "node", rank, "NVIDIA H100 80GB HBM3", "host", 0, 0)
        lines = [
            codec.encode_header(head),
            codec.encode_place(0, SourcePlace("train.py:1 main", SLEEP * self.sleeping)),
        ]
        if self.ranks > 1:
            lines.append(codec.encode_signature(0, [CollectiveShape("0", "allreduce", 10**8, self.ranks)]))
        else:
            rows, times = [replace(row, signature=-1, first_seqs=()) for row in rows], []
        buffer = StepBuffer()
        for number, row in enumerate(rows):
            buffer.keep(row, times[number : number + 1])
        lines += [codec.encode(self._reading(starts, second)) for second in range(1, int(starts[-1] / 1000))]
        lines += [codec.encode_samples(60, {0: 40}), codec.encode(Overhead(20_000 * STEPS, STEPS, 0, 1))]
        path = folder / f"rank-{rank}.jsonl"
        path.write_text("".join([*lines, codec.encode(End("ok", 0, round(starts[-1] * MS)))]), encoding="utf-8")
        path.with_suffix(".steps").write_bytes(buffer.take())

    def _reading(self, starts: Floats, second: int) -> ContextRow:
        step = min(int(np.searchsorted(starts, 1000 * second)), STEPS - 1)
        held = bool(self.held[step])
        allocated = round(30 * GIB + self.leak_bytes * step + abs(self.random.normal(0, 2**26)))
        return ContextRow(
            second * 1000 * MS, 40.0, 8 * GIB, GIB, 99.0, 40 * GIB, 500.0, GIB, allocated, 60 * GIB, GIB,
            gpu_clock_mhz=float(self.random.normal(1400 if held else 1800, 20)),
            gpu_temperature_c=86.0 if held else 65.0, gpu_throttle_reasons=0x20 if held else 0, gpu_power_limit_w=700.0,
        )  # fmt: skip

    def _manifest(self) -> Manifest:
        training = TrainingFacts(
            micro_batches=1, precision="amp-bf16", strategy="ddp" if self.ranks > 1 else "none",
            loader_workers=WORKERS, pin_memory=True, prefetch_factor=2, comm_hook="",
        )  # fmt: skip
        host = {"available_cores": 16, "logical_cores": 16, "gpu_memory_bytes": [80 * GIB], "memory_bytes": 64 * GIB}
        model = ModelFacts(gradient_bytes=10**8, compiled=True)
        return Manifest("job", ["job.py"], "", 0, self.ranks, 0, host=host, model=model, training=training)


def slow_loader(job: Job) -> None:
    """Two workers deliver in rounds of two."""
    job.data[:, ::2] += 30


def bursts(job: Job) -> None:
    """One step in twenty waits for long."""
    job.data[:, 10::20] += 350


def late_rank(job: Job) -> None:
    """Rank 1 computes a third longer."""
    job.compute[1] *= 1.35


def sleep(job: Job) -> None:
    """12 ms of a step."""
    job.other += 12
    job.sleeping = True


def leak(job: Job) -> None:
    """20 MiB a step."""
    job.leak_bytes = 20 * 2**20


def heat(job: Job) -> None:
    """From half time on a third longer."""
    job.held[STEPS // 2 :] = True
    job.compute[:, STEPS // 2 :] *= 1.35


FAULTS: dict[str, tuple[int, Callable[[Job], None], str]] = {
    "loader_workers": (1, slow_loader, "15 ms of waiting for data a step, in rounds of two"),
    "prefetch_factor": (1, bursts, "17 ms of waiting for data a step, in ten bursts"),
    "straggler": (2, late_rank, "one of two ranks computes 35 % longer"),
    "slow_line": (1, sleep, "12 ms of sleep a step"),
    "memory_creep": (1, leak, "20 MiB a step on the device, among peaks that vary by 64 MiB"),
    "throttling": (1, heat, "35 % longer computing at a clock 22 % lower, half of the time"),
}


def found(job: Job) -> list[str]:
    """The rules that speak of a job, infos left out."""
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder))
        run = load_run(folder)
        report = build_report(run, analyse(run), 10**18)
    return [finding.rule for finding in report.findings if finding.severity != "info"]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each kind")
    args = parser.parse_args()
    out = sys.stdout.write
    for ranks in (1, 2):
        spoken = [found(Job(np.random.default_rng((ranks, seed)), ranks)) for seed in range(args.runs)]
        which = Counter(rule for rules in spoken for rule in rules)
        alarmed = sum(map(bool, spoken))
        out(f"{args.runs} runs of {ranks} ranks without a fault: {alarmed} with a finding {dict(which) or ''}\n")
    out("\n| rule | fault | found | beside others |\n|---|---|---|---|\n")
    for number, (rule, (ranks, fault, words)) in enumerate(FAULTS.items()):
        hits, others = 0, Counter[str]()
        for seed in range(args.runs):
            job = Job(np.random.default_rng((9, number, seed)), ranks)
            fault(job)
            rules = found(job)
            hits += rule in rules
            others.update(set(rules) - {rule})
        also = ", ".join(f"`{name}` {times}" for name, times in others.items())
        out(f"| `{rule}` | {words} | {hits} of {args.runs} | {also} |\n")


if __name__ == "__main__":
    main()
