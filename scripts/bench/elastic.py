"""Elastic scaling beside jobs with fixed batches, on step times that others measured.

Jobs of five models arrive on 40 GPUs (T4, four to a machine) at three loads, and as in workloads of Pollux on 64. Their
step times are the recommender's, from placements that Pollux (OSDI 2021) measured on up to 16 such GPUs; the bounds of
their batches and the noise of their gradients are Pollux's too. Once every batch is as good, sample for sample, as the
paper assumes; once large ones are charged for the noise. Nothing but the time of the dynamic programme depends on the
machine that runs this.

python -m scripts.bench.elastic --data FOLDER [--traces FOLDER]: published placements, published workloads
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ddlprof.extensions.cluster.elastic.scaling import GoodputSpeeds, share_out
from ddlprof.extensions.cluster.jobs import Job, JobState
from ddlprof.extensions.cluster.machines import Cluster, parse_cluster
from ddlprof.extensions.cluster.policies.elastic import Elastic, FixedMax, FixedMin, FixedRandom
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policy import Decision, Policy
from ddlprof.extensions.cluster.simulation.core import Costs, simulate
from ddlprof.extensions.cluster.speeds import Speeds
from scripts.bench.elastic_jobs import APPLICATIONS, NOISE, drawn, from_trace, speeds_from
from scripts.bench.jobs import print_table

JOBS, RESTART_S = 120, 30.0
GAPS_S, SEEDS = (150.0, 240.0, 400.0), (1, 2, 3)
MIXES = {"five models": [*APPLICATIONS], "without NeuMF": [name for name in APPLICATIONS if name != "neumf_ml1m"]}
TRACES = ("pollux-load0.5-1", "pollux-1")
PROGRAMME_MS = 10.0

Makes = Callable[[int], Policy]
Found = list[tuple[float, int]]


class Unaware:
    """Chooses as if every batch were as good, whatever the truth is."""

    lease_s = 0.0

    def __init__(self, believed: Speeds, round_s: float) -> None:
        self._policy, self._believed, self.round_s = Elastic(round_s), believed, round_s

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """What elastic scaling decides on step times that nothing is charged to."""
        return self._policy.decide(now_s, queue, running, cluster, self._believed)


def policies(free: Speeds, is_charged: bool, round_s: float) -> dict[str, Makes]:
    """Those that are compared; the first is what the others are divided by."""
    found: dict[str, Makes] = {
        "elastic": lambda seed: Elastic(round_s),
        "elastic, accumulate=1": lambda seed: Elastic(round_s, accumulate=1),
        "fixed-max": lambda seed: FixedMax(round_s),
        "fixed-random": lambda seed: FixedRandom(round_s, seed=seed),
        "fixed-min": lambda seed: FixedMin(round_s),
        "fifo": lambda seed: Fifo(),
    }
    return {**found, "elastic, unaware of noise": lambda seed: Unaware(free, round_s)} if is_charged else found


def run(jobs: Sequence[Job], cluster: str, policy: Policy, truth: Speeds) -> tuple[float, int]:
    """The mean completion time in minutes, and how many jobs had ended when the last one was submitted."""
    outcomes = simulate(jobs, parse_cluster(cluster), policy, truth, costs=Costs(RESTART_S)).outcomes
    last_s = max(job.submit_s for job in jobs)
    mean_s = statistics.fmean(outcome.completion_s for outcome in outcomes)
    return mean_s / 60, sum(outcome.end_s <= last_s for outcome in outcomes)


def cells(found: dict[str, Found]) -> list[str]:
    """`35.2 (101) 1.33x`: minutes, jobs ended, and the minutes over those of the first policy."""
    means = {name: [statistics.fmean(column) for column in zip(*each, strict=True)] for name, each in found.items()}
    first = next(iter(means.values()))[0]
    return [f"{minutes:.1f} ({ended:.0f}) {minutes / first:.2f}x" for minutes, ended in means.values()]


def at_three_loads(speeds: Speeds, names: Sequence[str], is_charged: bool) -> None:
    """A table of the policies."""
    truth: Speeds = GoodputSpeeds(speeds, NOISE) if is_charged else speeds
    makes = policies(speeds, is_charged, 600.0)
    rows = []
    for gap_s in GAPS_S:
        jobs = {seed: drawn(names, seed, gap_s, JOBS, 40, speeds) for seed in SEEDS}
        found = {
            name: [run(jobs[seed], "10x4", make(seed), truth) for seed in SEEDS] for name, make in makes.items()
        }  # fmt: skip
        rows.append([f"{gap_s:g} s", *cells(found)])
    print_table(["mean gap", *makes], rows)


def of_a_workload(speeds: Speeds, path: Path, trace: str, is_charged: bool) -> list[str]:
    """A row of a table: one workload as it was published."""
    truth: Speeds = GoodputSpeeds(speeds, NOISE) if is_charged else speeds
    jobs = [job for job, _ in from_trace(path, trace, 64)]
    found = {name: [run(jobs, "16x4", make(1), truth)] for name, make in policies(speeds, is_charged, 60.0).items()}
    return [trace, *cells(found)]


def check_lengths(speeds: Speeds, path: Path) -> None:
    """Lengths of jobs at their tuned GPUs and batches: ours, with noise, over those of the published trace."""
    truth, cluster, ratios = GoodputSpeeds(speeds, NOISE), parse_cluster("16x4"), {name: [] for name in APPLICATIONS}  # type: ignore[var-annotated]
    for job, published_s in from_trace(path, TRACES[1], 64):
        step = truth.step(job, cluster.packed(job.gpus), job.batch)
        ratios[job.model or ""].append(job.samples / job.batch * step.step_s / published_s)
    found = {name: f"{statistics.median(each):.2f} ({len(each)})" for name, each in ratios.items() if each}
    print("\nour length of a job over the published one, median by model (jobs):", found)


def time_programme() -> None:
    """The processor time of one decision."""
    factors = np.cumsum(np.random.default_rng(0).uniform(0, 1, (30, 40)), axis=1) + 1
    times_ms = []
    for _ in range(100):
        began = time.process_time()
        share_out(factors, 40)
        times_ms.append(1000 * (time.process_time() - began))
    most, median = max(times_ms), statistics.median(times_ms)
    print(
        f"dynamic programme, 30 jobs on 40 GPUs: median {median:.2f} ms, at most {most:.2f} ms (limit {PROGRAMME_MS:g})"
    )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published placements")
    parser.add_argument("--traces", type=Path, help="folder of the published workloads")
    options = parser.parse_args()
    time_programme()
    print("noise scales in samples:", {name: round(noise) for name, noise in NOISE.items()})
    speeds = speeds_from(options.data)
    for is_charged in (False, True):
        words = "large batches charged" if is_charged else "every batch as good"
        for mix, names in MIXES.items():
            print(f"\n{mix}, {words}: mean completion in minutes (jobs ended at the last arrival), over elastic's\n")
            at_three_loads(speeds, names, is_charged)
        if options.traces:
            print(f"\nworkloads of Pollux, 64 GPUs, rounds of 60 s, {words}\n")
            path = options.traces / "pollux_sia.csv"
            rows = [of_a_workload(speeds, path, trace, is_charged) for trace in TRACES]
            print_table(["workload", *policies(speeds, is_charged, 60.0)], rows)
    if options.traces:
        check_lengths(speeds, options.traces / "pollux_sia.csv")


if __name__ == "__main__":
    main()
