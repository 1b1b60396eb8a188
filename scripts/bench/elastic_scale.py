"""How long `ddlprof elastic` takes with many jobs: the predictions of every batch on every count, and the division.

Three tables of processor seconds: the command on jobs with measured steps (`GPUSxBATCH=SECONDS`), each its own; with
`--data FOLDER` (published placements) the advice on jobs of five measured models, each with bounds of its own; and the
division alone, on speed-ups of several shapes.

python -m scripts.bench.elastic_scale [--data FOLDER] [--jobs 200] [--gpus 1024]
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddlprof.extensions.cluster.elastic.scaling import share_out
from ddlprof.extensions.cluster.elastic_advice import shares
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.speeds import PredictedSpeeds
from ddlprof.recommender import Predictor, Target
from scripts.bench.elastic_jobs import APPLICATIONS, MACHINE, workloads_from
from scripts.bench.jobs import print_table
from scripts.bench.machine import describe
from scripts.bench.merge import run as run_python

REPEATS = 3
DIVISION = (500, 4096)
HEAD = ("name", "run", "max_gpus", "min_batch", "max_batch", "max_batch_per_gpu")
SEVERAL = ((2,), (4,), (4, 4))
"""The placements on several GPUs of which a job has one measurement."""


def write_jobs(path: Path, jobs: int, gpus: int) -> None:
    """Jobs with five measured steps each, whose times are drawn."""
    dice = random.Random(1)
    lines = [",".join(HEAD)]
    for number in range(jobs):
        first, sample, exchange = dice.uniform(0.005, 0.02), dice.uniform(0.0005, 0.004), dice.uniform(0.005, 0.05)
        steps = [
            f"{ranks}x{batch}={first + sample * batch / ranks + (ranks > 1) * (exchange + 0.001 * (ranks - 2)):.5f}"
            for ranks, batch in ((1, 32), (1, 64), (2, 64), (4, 256), (8, 256))
        ]
        most, fits = dice.choice([1024, 4096, 16384]), dice.choice([64, 128, ""])
        lines.append(f"job-{number},{';'.join(steps)},{gpus},32,{most},{fits}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def of_the_command(jobs: int, gpus: int) -> float:
    """Processor seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        write_jobs(path, jobs, gpus)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_python(
            "-m", "ddlprof", "elastic", "--jobs", str(path), "--gpus", str(gpus), "--gpus-per-node", "8",
            "--format", "json", "-o", str(path.with_suffix(".json")),
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_predictions(data: Path, jobs: int, gpus: int, has_own: bool) -> float:
    """Processor seconds of the advice for jobs of five models, each measured six times at most."""
    dice = random.Random(5)
    made, few = {}, {}
    for name, workload in workloads_from(data).items():
        alone = [m for m in workload.measurements if m.placement == (1,)][:3]
        several = [m for placement in SEVERAL for m in workload.measurements if m.placement == placement]
        few[name] = replace(workload, measurements=[*alone, *several[: len(SEVERAL)]])
        made[name] = Predictor(few[name])
    asked, predictors = [], {}
    for number in range(jobs):
        name = dice.choice([*APPLICATIONS])
        of, fits = APPLICATIONS[name], dice.choice([1, 1, 2, 3])
        predictors[str(number)] = Predictor(few[name]) if has_own else made[name]
        asked.append(
            Job(
                str(number), 0.0, 1, 1e6, min(of.fits, of.largest), model=name, max_gpus=gpus, min_batch=of.smallest,
                max_batch=of.largest * dice.choice([1, 2, 4]), max_batch_per_gpu=max(of.fits // fits, 1),
            )
        )  # fmt: skip
    began = time.process_time()
    shares(asked, parse_cluster(f"{gpus // 4}x4"), PredictedSpeeds(predictors, Target(MACHINE)), {})
    return time.process_time() - began


def speed_ups(jobs: int, most: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Speed-ups of some shapes on up to so many GPUs."""
    drawn, gpus = np.random.default_rng(0), np.arange(1, most + 1)
    yield "drawn, always rising", np.cumsum(drawn.uniform(0, 1, (jobs, most)), axis=1) + 1
    yield "drawn, rising and falling", np.cumsum(drawn.uniform(-0.4, 1, (jobs, most)), axis=1) + 1
    serial = drawn.choice([0.001, 0.01, 0.03, 0.1], jobs)[:, None]
    yield "by Amdahl's law", gpus / (1 + serial * (gpus - 1))
    batch = drawn.choice([256, 4096, 16384], jobs)[:, None]
    yield "of steps of a batch", batch / (-(-batch // gpus) + 5.0 * (gpus > 1) + 0.2 * np.ceil(gpus / 8)) / 100
    yield "all alike, in proportion", np.tile(gpus.astype(float), (jobs, 1))


def of_the_division(factors: NDArray[np.float64], gpus: int) -> float:
    """Processor seconds of the dynamic programme."""
    began = time.process_time()
    share_out(factors, gpus)
    return time.process_time() - began


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the published placements")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=1024)
    given = parser.parse_args()
    sys.stdout.write(f"{describe()}\n\n{given.jobs} jobs on {given.gpus} GPUs, median of {REPEATS}\n\n")
    tried: dict[str, Callable[[], float]] = {
        "steps of its own, whole command": lambda: of_the_command(given.jobs, given.gpus)
    }
    if given.data:
        tried["runs of five models, shared"] = lambda: of_predictions(given.data, given.jobs, given.gpus, False)
        tried["a run of its own each"] = lambda: of_predictions(given.data, given.jobs, given.gpus, True)
    rows = [[name, f"{statistics.median(each() for _ in range(REPEATS)):.1f}"] for name, each in tried.items()]
    print_table(["jobs with", "processor s"], rows)
    jobs, gpus = DIVISION
    sys.stdout.write(f"\nthe division alone, {jobs} jobs on {gpus} GPUs, any number for each\n\n")
    rows = [[name, f"{of_the_division(factors, gpus):.2f}"] for name, factors in speed_ups(jobs, gpus)]
    print_table(["speed-ups", "processor s"], rows)


if __name__ == "__main__":
    main()
