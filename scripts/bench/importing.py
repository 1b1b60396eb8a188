"""How well imported traces agree with `ddlprof run`, and what their communication is by the definitions of others.

    python -m scripts.bench.importing truth             # two ranks on the CPU, both views of the same steps
    python -m scripts.bench.importing published FOLDER  # traces of GPUs, beside HTA's and TraceLens' definitions
    python -m scripts.bench.importing large TRACE       # a trace of a gigabyte: time and memory

`truth` runs `jobs/recorded.py` under `ddlprof run` while it records itself with torch.profiler, imports its traces, and
compares each class over the steps that both have. Limit: 5 % of the step. In `published` the other tools' figures are
computed here with pandas by their published definitions, over the same windows of the device's time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pandas as pd

import ddlprof
from ddlprof.importing import import_traces
from scripts.bench import importing_large, importing_published
from scripts.bench.jobs import Limits, print_table, progress, run_job
from scripts.bench.machine import describe

CLASSES = ("compute", "data", "h2d", "comm", "other")
PARTS = ("compute_forward", "compute_backward", "compute_optimizer", "straggler")
LIMIT = 0.05
HALF = 0.5
"""Of the steps: what fewer have is not shown."""
CASES: dict[str, dict[str, float]] = {
    "training alone": {},
    "slow loader": {"load_ms": 15},
    "pauses": {"pause_ms": 10},
    "late rank": {"late_ms": 10},
    "all of it": {"load_ms": 10, "pause_ms": 5, "late_ms": 8},
    "without shapes": {"load_ms": 10, "shapes": 0},
}


def truth_case(folder: Path, options: dict[str, float], steps: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The steps of one job as `ddlprof run` and as an import of its traces have them, step for step."""
    traces = folder / "traces"
    traces.mkdir(parents=True)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "ddlprof"]
    words += ["run", "--quiet", "--no-calibrate", "--out", str(folder / "run")]
    arguments = {"trace": traces, "steps": steps + 30, "first": 20, "recorded": steps, **options}
    run_job(words, "recorded", folder / "truth.json", **arguments)
    import_traces([traces], folder / "imported")
    ran, imported = (ddlprof.load(folder / name).steps for name in ("run", "imported"))
    both = ran.merge(imported[["rank", "step"]], on=["rank", "step"])[["rank", "step"]]
    return ran.merge(both), imported.merge(both)


def truth(steps: int, only: str) -> int:
    """Prints both views of every case side by side."""
    limits, rows = Limits(), []
    print(describe())
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        for number, (case, options) in enumerate(CASES.items()):
            if only not in case:
                continue
            progress(case)
            ran, imported = truth_case(Path(name) / str(number), options, steps)
            for rank in sorted(set(ran["rank"])):
                one, two = (table[table["rank"] == rank] for table in (ran, imported))
                step_s = one["step_s"].mean()
                cells = []
                for each in (*CLASSES, *PARTS):
                    ours, theirs = one[f"{each}_s"].mean(), two[f"{each}_s"].mean()
                    known = two[f"{each}_s"].notna().mean() > HALF
                    cells.append(f"{1e3 * ours:.2f} / {f'{1e3 * theirs:.2f}' if known else '-'}")
                    if each in CLASSES:
                        limits.at_most(f"{case}, rank {rank}: {each}", abs(ours - theirs) / step_s, LIMIT)
                worst = max(abs(one[f"{c}_s"].mean() - two[f"{c}_s"].mean()) / step_s for c in CLASSES)
                sizes = f"{1e3 * step_s:.2f} / {1e3 * two['step_s'].mean():.2f}"
                rows.append([case, rank, len(one), sizes, *cells, f"{worst:.1%}"])
    print_table(
        ["case", "rank", "steps", "step ms, run / import", *(f"{each} ms" for each in (*CLASSES, *PARTS)), "worst"],
        rows,
    )
    return limits.exit_code()


def main() -> int:
    """Runs one of the parts, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("truth", "published", "large"))
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--bytes", type=float, default=1e9, help="of the large trace")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.part == "truth":
        return truth(args.steps, args.only)
    if args.path is None:
        parser.error(f"{args.part} needs a path")
    if args.part == "published":
        return importing_published.compare(sorted(args.path.glob("*.json*")))
    return importing_large.measure(args.path, int(args.bytes))


if __name__ == "__main__":
    sys.exit(main())
