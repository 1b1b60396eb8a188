"""Which rank, which collective, which line: the finding on real jobs with a fault, and none on jobs that only pause.

`python -m scripts.bench.hangs` runs the 20 faults and the 50 harmless jobs, and prints the table of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ddlprof.analysis.hang_facts import Hang
from ddlprof.base.errors import UserError
from ddlprof.live.hang import look
from scripts.lab.hosts import Lab, missing

SCRIPT = Path(__file__).parents[1] / "jobs" / "hangs.py"
HANG_AFTER_S = 3
TIMEOUT_S = 10
"""How long the ranks of a job wait that is looked at when all of it has ended."""
DISK = "disk"
"""The folder of a job with a small disk."""
PATIENCE_S = 90.0
LAST_WORDS_S = 4.0
"""The time between the first finding and the look that counts, in which all ranks have said what they do."""


@dataclass(frozen=True)
class Case:
    """A fault, and what has to be found. `seq`: the operation and its bytes; None: no collective is asked for."""

    name: str
    world: int
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    op: str | None = "allreduce"
    bytes: int | None = None
    line: bool = True
    root: bool = False
    over: bool = False
    """Whether it is looked at only after the others have died of their timeout, and the rank at fault was killed."""


FAULTS = (
    Case("early-return", 2, ("missing",), (1,), bytes=12),
    Case("early-return", 4, ("missing",), (1,), bytes=12),
    Case("early-exit", 3, ("ended",), (1,), bytes=12, line=False),
    Case("skip", 3, ("skipped", "shape"), (1,), bytes=12, line=False),
    Case("extra", 4, ("extra", "shape"), (1,), bytes=12, line=False),
    Case("shape", 3, ("shape", "failed"), (1,), bytes=28),
    Case("kind", 3, ("kind",), (1,), bytes=28),
    Case("order", 3, ("order",), (1,), bytes=36),
    Case("order-async", 4, ("order",), (1,), bytes=36),
    Case("worker-killed", 2, ("failed", "worker"), (1,), bytes=12),
    Case("worker-blocked", 3, ("input",), (1,), bytes=12),
    Case("producer-killed", 2, ("worker",), (1,), bytes=12),
    Case("short-data", 4, ("kind",), (1,), bytes=12),
    Case("stopped", 3, ("stopped",), (1,), bytes=12, line=False),
    Case("killed", 3, ("silent",), (1,), bytes=12, line=False),
    Case("disk-full", 2, ("disk",), (1,), bytes=12, root=True),
    Case("network", 2, ("network",), (0, 1), line=False, root=True),
    Case("locks", 3, ("lock",), (1,), bytes=12),
    Case("pair", 4, ("missing",), (3,), bytes=44),
    Case("message", 3, ("missing",), (1,), op=None),
)
MORE_FAULTS = (
    Case("exception", 3, ("failed",), (1,), bytes=12),
    Case("disk-full-error", 3, ("disk",), (1,), bytes=12, root=True),
    Case("join", 2, ("lock",), (1,), bytes=12),
    Case("last-barrier", 2, ("missing",), (1,), op="barrier"),
)
AFTERWARDS = (
    Case("sleeps", 4, ("missing",), (1,), bytes=16_640, over=True),
    Case("polls", 4, ("missing", "late"), (1,), bytes=16_640, over=True),
    Case("early-return", 4, ("missing",), (1,), bytes=16_640, over=True),
    Case("file-lock", 4, ("missing",), (1,), bytes=16_640, over=True),
    Case("socket", 4, ("missing",), (1,), bytes=16_640, over=True),
    Case("stopped", 4, ("stopped",), (1,), bytes=16_640, line=False, over=True),
    Case("comes-late", 4, ("late",), (1,), bytes=16_640, over=True),
)
"""Faults that DDP's timeout ends, within `backward`. To wait for a processor counts as work, so on a busy machine a
rank that polls works."""
PAUSES = (
    "pause-checkpoint", "pause-evaluation", "pause-modules", "pause-write", "pause-compile", "pause-all", "pause-end",
    "slow-batch", "slow-steps", "none",
)  # fmt: skip
"""Long phases that are no hang: five jobs of each make the fifty."""


@dataclass(frozen=True)
class Outcome:
    """What was found of one job. `right`: what of it was right, by name."""

    name: str
    world: int
    found: Hang | None
    right: dict[str, bool]

    @property
    def all_right(self) -> bool:
        """Whether nothing was wrong."""
        return all(self.right.values())


Job = tuple[Path, list[subprocess.Popen[bytes]]]
"""A run directory, and the processes of the ranks."""


@contextmanager
def job(name: str, world: int, folder: Path, **environment: str) -> Iterator[Job]:
    """Starts the ranks of a job; yields its run directory and processes, which are killed at the end."""
    run = folder / "run"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    common |= {"WORLD_SIZE": str(world), **environment}
    log = (folder / "log").open("wb")
    disk = folder / DISK
    ranks: list[subprocess.Popen[bytes]] = []
    for rank in range(world):
        ranks.append(
            subprocess.Popen(
                command(name, run, disk if disk.exists() else folder), cwd=folder, stdout=log, stderr=log,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                preexec_fn=partial(os.setpgid, 0, ranks[0].pid if ranks else 0),  # one group, which `kill` ends
            )
        )  # fmt: skip
    try:
        yield run, ranks
    finally:
        kill(ranks)
        log.close()


def kill(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends the ranks, and what those of one group have started, at one moment: a rank that lived a little longer would
    write that another one is a zombie."""
    living = (os.getpgid(each.pid) for each in ranks if each.returncode is None)
    for group in {*living} - {os.getpgrp()}:
        os.killpg(group, signal.SIGKILL)
    for each in ranks:  # of other hosts
        each.kill()
    for each in ranks:
        each.wait()


def command(name: str, run: Path, folder: Path) -> list[str]:
    """The words that start a rank."""
    return [
        sys.executable, "-m", "ddlprof", "run", "--quiet", "--no-calibrate", "--hang-after", str(HANG_AFTER_S),
        "-o", str(run), str(SCRIPT), name, str(folder),
    ]  # fmt: skip


def looked(run: Path) -> Hang | None:
    """The finding now; None before the run has begun, too."""
    with suppress(UserError):
        return look(str(run))
    return None


def find(run: Path, ranks: Sequence[subprocess.Popen[bytes]]) -> Hang | None:
    """The finding on a job with a fault: after it stood still for a while, or all that can end have ended."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(1.0)
        found = looked(run)
        ended = sum(each.poll() is not None for each in ranks)
        if (found is not None and found.is_hang) or ended == len(ranks):
            break
    time.sleep(LAST_WORDS_S)
    kill(ranks)
    return looked(run)


def find_after(run: Path, ranks: Sequence[subprocess.Popen[bytes]], late: bool) -> Hang | None:
    """The finding when all ranks have ended: those that waited by their timeout, then the one at fault."""
    end = time.monotonic() + PATIENCE_S
    for number, each in enumerate(ranks):
        if late or number != 1:
            with suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, end - time.monotonic()))
    kill(ranks)
    return looked(run)


def try_fault(case: Case) -> Outcome:
    """Runs a job with a fault and compares the finding with the truth."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if case.over:
            variables = {"DDP": "1", "TIMEOUT_S": str(TIMEOUT_S), "LONG_S": str(2 * TIMEOUT_S)}
            with job(case.name, case.world, folder, **variables) as (run, ranks):
                return judged(case, find_after(run, ranks, case.name == "comes-late"))
        if case.name == "network":
            return judged(case, dead_network(folder))
        if not case.name.startswith("disk-full"):
            with job(case.name, case.world, folder) as (run, ranks):
                return judged(case, find(run, ranks))
        disk = folder / DISK
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
        try:
            with job(case.name, case.world, folder) as (run, ranks):
                return judged(case, find(run, ranks))
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def dead_network(folder: Path) -> Hang | None:
    """The finding on a job of two hosts whose network goes away."""
    run = folder / "run"
    with Lab(2) as lab:
        common: dict[str, Any] = {
            "MASTER_ADDR": lab.address(0), "MASTER_PORT": "29511", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }  # fmt: skip
        ranks = [
            lab.start(host, command("network", run, folder), RANK=str(host), LOCAL_RANK="0", **common)
            for host in range(2)
        ]
        end = time.monotonic() + PATIENCE_S
        while not all((folder / f"ready-{host}").exists() for host in range(2)) and time.monotonic() < end:
            time.sleep(0.05)
        subprocess.run(["ip", "-n", lab.namespaces[1], "link", "set", "eth0", "down"], check=True)
        return find(run, ranks)


def judged(case: Case, found: Hang | None) -> Outcome:
    """What of a finding is right."""
    if found is None:
        return Outcome(case.name, case.world, None, {"found": False})
    place = found.collective
    right = {
        "kind": found.kind in case.kinds,
        "rank": tuple(found.ranks) == case.ranks,
        "collective": place is not None and case.op in (None, place.op) and case.bytes in (None, place.bytes),
    }
    if case.line:
        right["line"] = f"{SCRIPT.name}:" in found.place and line_of(found.place) in lines_of(case.name)
    return Outcome(case.name, case.world, found, right)


def line_of(place: str) -> int:
    """The number in `file:line function`."""
    number = place.partition(" ")[0].rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def lines_of(name: str) -> set[int]:
    """The lines of the script that are marked with a fault's name."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if name in line.partition("# ")[2].split()}


def try_pause(name: str, world: int, long_s: float) -> Outcome:
    """Runs a harmless job and looks at it again and again, as `ddlprof watch --hang` does."""
    with tempfile.TemporaryDirectory() as folder, job(name, world, Path(folder), LONG_S=str(long_s)) as (run, ranks):
        end, alarm = time.monotonic() + PATIENCE_S, None
        while any(each.poll() is None for each in ranks) and time.monotonic() < end:
            time.sleep(0.5)
            found = looked(run)
            alarm = alarm or (found if found is not None and found.is_hang else None)
        after = looked(run)
        alarm = alarm or (after if after is not None and after.is_hang else None)
        completed = all(each.poll() == 0 for each in ranks)
        return Outcome(name, world, alarm, {"completed": completed, "no alarm": alarm is None})


def pauses() -> Iterator[tuple[str, int, float]]:
    """The fifty harmless jobs: name, ranks, and seconds of the pause."""
    for number in range(5):
        for name in PAUSES:
            yield name, 1 + (number + len(name)) % 3, 5.0 + 2.0 * number


def faults() -> list[Case]:
    """The faults that can be made here."""
    able = missing() is None
    return [case for case in (*FAULTS, *MORE_FAULTS, *AFTERWARDS) if able or not case.root]


def main() -> None:
    """Runs all and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Names of faults or pauses, with commas.")
    parser.add_argument("--at-once", type=int, default=1, help="Jobs at once.")
    parser.add_argument("--skip-pauses", action="store_true")
    parser.add_argument("--skip-faults", action="store_true")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    print("| job | ranks | finding | of ranks | right |\n|---|---|---|---|---|")
    cases = [case for case in faults() if not arguments.skip_faults and (not only or case.name in only)]
    quiet = [each for each in pauses() if not arguments.skip_pauses and (not only or each[0] in only)]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        first = [show(outcome) for outcome in pool.map(try_fault, cases)]
        then = [show(outcome) for outcome in pool.map(lambda each: try_pause(*each), quiet)]
    print(
        f"\nfaults: {sum(first)} of {len(first)} right; harmless jobs: {len(then) - sum(then)} of {len(then)} alarmed"
    )


def show(outcome: Outcome) -> bool:
    """Prints the line of one job; returns whether all was right."""
    found = outcome.found
    wrong = [name for name, right in outcome.right.items() if not right]
    kind = f"{found.kind} at {found.place}" if found is not None else "-"
    ranks = ", ".join(map(str, found.ranks)) if found is not None else "-"
    said = f"**not {', '.join(wrong)}**" if wrong else "yes"
    print(f"| {outcome.name} | {outcome.world} | {kind} | {ranks} | {said} |", flush=True)
    return outcome.all_right


if __name__ == "__main__":
    main()
