"""An hour of a small loop whose disk fails and whose ranks stop: nothing is lost without a word, memory stays flat.

    sudo python -m scripts.bench.soak --seconds 3600

Two ranks of `jobs/soak.py` at up to 200 steps a second, the garbage collector off, in a folder of a small file system
of its own (tmpfs, which needs root; without root that fault is left out). At random: the file system is full and has
room again, writes fail with ESTALE, writes take up to 20 seconds (a paused helper thread), a rank is stopped (SIGSTOP)
and goes on. At the end rows and sums have to add up to the loop's own count, and each gap has to be said.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from ddlprof.store import RankData, load_run
from scripts.bench.jobs import JOBS, Limits, print_table, profiled, progress
from scripts.bench.machine import describe

RANKS = 2
DISK_MB = 200
WARM_SHARE = 0.2
GROWTH_LIMIT_MB = 8.0
"""The most that the resident set may grow after the first fifth."""


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mounts a file system of `DISK_MB` there; yields whether that worked."""
    folder.mkdir()
    size = f"size={DISK_MB}m"
    mounted = os.geteuid() == 0 and not subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder]).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


def torment(process: subprocess.Popen[bytes], disk: Path | None, seed: int) -> list[str]:
    """Fills the disk and stops ranks at random until the job ends. Returns what was done."""
    draw, done = random.Random(seed), []
    filler = disk / "filler" if disk is not None else None
    while process.poll() is None:
        _wait(process, draw.uniform(40, 200))
        fault = draw.choice(("full", "stop"))
        if fault == "full" and filler is not None:
            with suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(1 << 20))
            _wait(process, draw.uniform(5, 60))
            filler.unlink(missing_ok=True)
        else:
            ranks = _ranks(process.pid)
            if not ranks:
                continue
            victim = draw.choice(ranks)
            with suppress(psutil.Error):
                victim.send_signal(signal.SIGSTOP)
                _wait(process, draw.uniform(2, 15))
                victim.send_signal(signal.SIGCONT)
        done.append(fault)
    if filler is not None:
        filler.unlink(missing_ok=True)
    return done


def _ranks(pid: int) -> list[psutil.Process]:
    try:
        below = psutil.Process(pid).children(recursive=True)
        return [each for each in below if "soak.py" in " ".join(each.cmdline()) and "RANK" in each.environ()]
    except psutil.Error:
        return []


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def check(rank: RankData, truth: dict[str, Any], limits: Limits) -> list[object]:
    """Compares a rank with what its loop counted; returns a row of the table."""
    name = f"rank {rank.rank}"
    rows, sums = len(rank.steps), sum(each.steps for each in rank.aggregates)
    lost = sum(drop.count for drop in rank.drops if "step" in drop.many)
    limits.at_most(f"{name}: steps neither there nor said to be lost", truth["steps"] - rows - sums - lost, 0)
    limits.at_most(f"{name}: steps too many", rows + sums - truth["steps"], 0)
    last = truth["resident"][-1][0]
    warm = [megabytes for at_s, _, megabytes in truth["resident"] if at_s >= WARM_SHARE * last]
    growth = max(warm[-5:]) - max(warm[:5])
    limits.at_most(f"{name}: growth of the resident set after the first fifth, MB", growth, GROWTH_LIMIT_MB)
    gaps = [note.message for note in rank.notes if note.source == "files"]
    for gap in gaps:
        progress(f"{name}: {gap}")
    resident = [f"{warm[0]:.1f}", f"{warm[-1]:.1f}"]
    return [name, truth["steps"], rows, sums, lost, *resident, len(truth["faults"]), len(gaps)]


def main() -> int:
    """Runs the job, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    limits = Limits()
    print(describe())
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name) / "disk") as mounted:
        disk, truth = Path(name) / "disk", Path(name) / "truth.json"
        words = [*profiled(disk / "run", f"--nproc-per-node={RANKS}"), str(JOBS / "soak.py")]
        words += ["--truth", str(truth), "--seconds", str(args.seconds), "--faults"]
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        begin = time.monotonic()
        done = torment(process, disk if mounted else None, args.seed)
        limits.at_most("exit code", abs(process.wait()), 0)
        progress(f"ended after {time.monotonic() - begin:.0f} s: {' '.join(done)}")
        run = load_run(disk / "run")
        truths = [json.loads(truth.with_suffix(f".{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
        rows = [check(rank, truths[rank.rank], limits) for rank in run.ranks]
        limits.at_least("ranks", len(run.ranks), RANKS)
        print_table(
            ["rank", "steps", "rows", "in sums", "said to be lost", "MB at a fifth", "MB at the end",
             "failing or slow writes", "gaps said"], rows,
        )  # fmt: skip
        print(f"\nBeside these: {done.count('full')} full disks, {done.count('stop')} stopped ranks.")
        with suppress(OSError):
            shutil.rmtree(disk / "run")
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
