"""The first half hour on a GPU: what ddlprof says and costs there, in the order of what is worth most to know.

    python -m scripts.bench.gpu --out gpu.jsonl      # everything, on a machine with a GPU (two for all of it)
    python -m scripts.bench.gpu --rehearse           # the same on simulated devices: does it run to its end?

One line of JSON an experiment on standard output as they end, in `--out` too, and a table when all are done. Each
experiment has a hard limit of time, and all together less than half an hour; what hangs is killed.
A rehearsal is small and judges nothing: its rows say `rehearsed`, or `rehearsed on the host` where the simulation
cannot do what the experiment needs and a stand-in runs on the processor. What hangs on nothing but the order and the
length of kernels (sleeps, copies, loaders) should come out right in it; a row says where it does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.gpu.experiment import Row, call, perform, python, table
from scripts.bench.gpu.experiments import EXPERIMENTS
from scripts.bench.jobs import progress
from scripts.bench.machine import describe

TOTAL_S = 29 * 60
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def devices_here(folder: Path) -> int:
    """Asked in another process: a context of ours would be on the device of the jobs."""
    import os

    code, said = call([python(), "-c", _COUNT], dict(os.environ), 60, folder / "devices")
    return int(said.split()[-1]) if code == 0 else 0


def main() -> int:
    """Runs what is asked for; 1 if something failed or missed its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[e.name for e in EXPERIMENTS])
    parser.add_argument("--list", action="store_true", help="the experiments and their limits of time")
    parser.add_argument("--quick", action="store_true", help="fewer steps and pairs")
    parser.add_argument("--rehearse", action="store_true", help="on simulated devices")
    parser.add_argument("--out", type=Path, help="the lines of JSON go here, too, as they come")
    args = parser.parse_args()
    chosen = [e for e in EXPERIMENTS if args.only is None or e.name in args.only]
    if args.list:
        for experiment in chosen:
            print(f"{experiment.name:28} {experiment.limit_s:4} s   {(experiment.run.__doc__ or '').splitlines()[0]}")
        return 0
    rows: list[Row] = []
    deadline = time.monotonic() + TOTAL_S
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = 0 if args.rehearse else devices_here(folder)
        if here == 0 and not args.rehearse:
            sys.exit("no GPU here that torch can use; --rehearse runs on simulated ones")
        if args.out:
            args.out.write_text("", encoding="utf-8")
        for experiment in chosen:
            progress(experiment.name)
            own = folder / experiment.name
            own.mkdir()
            left_s = min(experiment.limit_s, deadline - time.monotonic())
            if left_s > 0:
                row = perform(experiment, own, left_s, args.rehearse, args.quick, here)
            else:
                row = Row(experiment.name, "skipped", "no time was left")
            rows.append(row)
            print(row.line(), flush=True)
            if args.out:
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(row.line() + "\n")
    print("\n" + describe() + "\n")
    print("\n".join(table(rows)))
    return int(any(row.status in ("failed", "missed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
