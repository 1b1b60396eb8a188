"""The first hour on a GPU, in parts of nine minutes: what ddlprof says and costs there, most valuable answers first.

    python -m scripts.bench.gpu.wheels                          # before, where there is a network
    python -m scripts.bench.gpu --minutes 9 --out gpu.jsonl     # runs what is not in gpu.jsonl yet, for nine minutes
    python -m scripts.bench.gpu --part 2 --out gpu.jsonl        # the second part; --list shows the parts
    python -m scripts.bench.gpu --rehearse                      # all of it on simulated devices: does it end?

One line of JSON an experiment on standard output as they end, appended to `--out` too, and a table at the end; what is
answered so far is said at the top of both. What `--out` has finished is not run again (`--only NAME` does, `--retry`
runs what failed). Each experiment has a hard limit of time; what hangs is killed.
A rehearsal is small and judges nothing: its rows say `rehearsed`, or `rehearsed on the host` where the simulation
cannot do what the experiment needs and a stand-in runs on the processor. What hangs on nothing but the order and the
length of kernels (sleeps, copies, loaders) should come out right in it; a row says where it does not.
"""

from __future__ import annotations

import sys

from scripts.bench.gpu import wheels

if __name__ == "__main__":
    wheels.use(sys.argv[1:])

import argparse
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from scripts.bench.gpu.experiment import Experiment, Row, call, perform, python, table
from scripts.bench.gpu.experiments import EXPERIMENTS
from scripts.bench.gpu.plan import NO_TIME, START_S, answers, finished, next_one, parts
from scripts.bench.jobs import progress
from scripts.bench.machine import describe

_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def devices_here(folder: Path) -> int:
    """Asked in another process: a context of ours would be on the device of the jobs."""
    code, said = call([python(), "-c", _COUNT], dict(os.environ), 60, folder / "devices")
    return int(said.split()[-1]) if code == 0 else 0


def chosen(args: argparse.Namespace, done: dict[str, Row]) -> list[Experiment]:
    """What this call is to run, in order."""
    if args.only:
        return [each for each in EXPERIMENTS if each.name in args.only]
    mine = parts(EXPERIMENTS)[args.part - 1] if args.part else list(EXPERIMENTS)
    retried = {name for name, row in done.items() if args.retry and row.status == "failed"}
    return [each for each in mine if each.name not in done or each.name in retried]


def run(waiting: list[Experiment], seconds: float, args: argparse.Namespace, rows: dict[str, Row]) -> None:
    """Performs the experiments one after another as long as they fit into `seconds`; each row is written at once."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as ending:
        folder = args.keep or Path(ending.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        here = 0 if args.rehearse else devices_here(folder)
        if here == 0 and not args.rehearse:
            sys.exit("no GPU here that torch can use; --rehearse runs on simulated ones")
        while waiting:
            experiment = next_one(waiting, deadline - time.monotonic())
            if experiment is None:
                break
            waiting.remove(experiment)
            progress(experiment.name)
            own = folder / experiment.name
            own.mkdir(exist_ok=True)
            row = perform(experiment, own, experiment.limit_s, args.rehearse, args.quick, here)
            _keep(row, args.out, rows)
    for each in waiting:
        _keep(Row(each.name, "skipped", NO_TIME), None, rows)


def _keep(row: Row, out: Path | None, rows: dict[str, Row]) -> None:
    rows[row.name] = row
    print(row.line(), flush=True)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(row.line() + "\n")


def say(lines: Iterable[str]) -> None:
    """Lines that are no rows."""
    print("\n".join([*lines, ""]), flush=True)


def main() -> int:
    """Runs what is asked for; 1 if something failed or missed its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[e.name for e in EXPERIMENTS])
    parser.add_argument("--part", type=int, choices=range(1, len(parts(EXPERIMENTS)) + 1), help="one part of the plan")
    parser.add_argument("--minutes", type=float, help="begin nothing that may end later than this")
    parser.add_argument("--list", action="store_true", help="the parts, their experiments and limits of time")
    parser.add_argument("--quick", action="store_true", help="fewer steps and pairs")
    parser.add_argument("--retry", action="store_true", help="run again what has failed")
    parser.add_argument("--rehearse", action="store_true", help="on simulated devices")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where runs, outputs and truths of the jobs stay")
    parser.add_argument("--out", type=Path, help="a file that the lines of JSON are appended to, as they come")
    args = parser.parse_args()
    if args.list:
        for number, part in enumerate(parts(EXPERIMENTS), 1):
            print(f"part {number}: {sum(each.limit_s for each in part)} s at most")
            for each in part:
                said = (each.run.__doc__ or "").splitlines()[0]
                print(f"  ({each.question}) {each.name:28} {each.limit_s:4} s   {said}")
        return 0
    done = finished(args.out, args.rehearse)
    waiting = chosen(args, done)
    names = ", ".join(each.name for each in waiting) or "nothing"
    say(["answered so far:", *answers(EXPERIMENTS, done), f"to run: {names}"])
    rows = dict(done)
    run(waiting, 60 * args.minutes - START_S if args.minutes else math.inf, args, rows)
    say(["", describe(), "", *answers(EXPERIMENTS, rows), "", *table(rows.values())])
    return int(any(row.status in ("failed", "missed") for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
