"""AITurbo with CPU nodes and without, by how slow they are and how many jobs are predictable.

    python -m scripts.bench.cpu_nodes TRACE[:NAME] CLUSTER LOAD NODES

No published trace tells how long its jobs take without a GPU, so this is assumed: a node takes 3, 10 or 30 times as
long as one GPU of the job, each job up to twice that or half of it. Jobs are submitted at the given load, in the order
of five seeds. Prints the mean completion time with the nodes over that without, mean and range of the seeds.

    python -m scripts.bench.cpu_nodes random SEEDS

draws small traces of predictable jobs, and says on how many the mean completion time is longer with nodes.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Cluster, parse_cluster
from ddlprof.extensions.cluster.penalties import PenalisedSpeeds, shipped_penalties
from ddlprof.extensions.cluster.policies.aiturbo import Aiturbo
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.sweep.cases import SimulationCase
from ddlprof.extensions.cluster.sweep.run import Setting, run_case
from ddlprof.extensions.cluster.trace import fitted, read_trace, split_source
from scripts.lab.as_measured import AsMeasured

SLOWER = (3.0, 10.0, 30.0)
PREDICTABLE = (0.0, 0.5, 1.0)
SEEDS = range(5)
MOST_JOBS = 500


def with_nodes(jobs: Sequence[Job], slower: float, seed: int = 0) -> list[Job]:
    """The same jobs, which may run on one CPU node."""
    draw = random.Random(seed)
    return [
        replace(job, cpu_steps_s=((job.step_s or 1.0) * job.gpus * slower * math.exp(draw.uniform(-0.69, 0.69)),))
        for job in jobs
    ]


def ratio(jobs: Sequence[Job], cluster: Cluster, nodes: int, case: SimulationCase, error: float) -> float:
    """The mean completion time with nodes over that without."""
    speeds = PenalisedSpeeds(cluster, shipped_penalties())
    means = [
        run_case(
            Setting(jobs, replace(cluster, cpu_nodes=each), speeds, pred_error=error, draws_arrivals=True), case
        ).summary.completion_mean_s
        for each in (nodes, 0)
    ]
    return means[0] / means[1]


def traces(source: str, shape: str, load: float, nodes: int) -> None:
    """Prints a row for each speed and share."""
    cluster = parse_cluster(shape)
    jobs, _ = fitted(read_trace(*split_source(source))[:MOST_JOBS], cluster, "drop")
    print(f"\n{source}: {len(jobs)} jobs on {shape} and {nodes} nodes, load {load:g}")
    for slower in SLOWER:
        for share in PREDICTABLE:
            there = with_nodes(jobs, slower)
            found = [ratio(there, cluster, nodes, SimulationCase("aiturbo", seed, load, share), 0.25) for seed in SEEDS]
            low, high = min(found) - 1, max(found) - 1
            print(f"{slower:4g} x  {share:4.0%}  {fmean(found) - 1:+7.1%}  ({low:+.1%} to {high:+.1%})", flush=True)


def drawn(seed: int, sizes: Sequence[int]) -> tuple[list[Job], str, int, float]:
    """A trace, its cluster, the nodes and the seconds of a restart."""
    draw, now_s, jobs = random.Random(seed), 0.0, []
    gap_s, restart_s = draw.choice([0.0, 100.0, 600.0, 3000.0]), draw.choice([0.0, 30.0, 300.0])
    ratios = draw.choice([(0.5, 2.0), (1.0, 30.0), (5.0, 100.0)])
    for number in range(draw.randint(2, 20)):
        gpus, seconds = draw.choice(sizes), math.exp(draw.uniform(math.log(60), math.log(18_000)))
        slower = math.exp(draw.uniform(*map(math.log, ratios)))
        jobs.append(Job(f"{number}", now_s, gpus, seconds * 64, 64, 1.0, cpu_steps_s=(slower * gpus,)))
        now_s += draw.expovariate(1 / gap_s) if gap_s else 0.0
    return (
        jobs,
        draw.choice(["1x8", "2x4", "2x8"] if max(sizes) > 1 else ["1x1", "1x2", "1x4"]),
        draw.choice([1, 2, 4]),
        restart_s,
    )


def small(seeds: int) -> None:
    """Prints on how many traces nodes make the mean longer."""
    for what, sizes in (("jobs of one GPU", [1]), ("jobs of 1, 2, 4 and 8 GPUs", [1, 1, 2, 4, 8])):
        found = []
        for seed in range(seeds):
            jobs, shape, nodes, restart_s = drawn(seed, sizes)
            cluster = parse_cluster(shape)
            policies = [Aiturbo(restart_s=restart_s) for _ in range(2)]
            ends = [
                simulate(jobs, replace(cluster, cpu_nodes=each), policy, AsMeasured(), restart_s=restart_s).outcomes
                for each, policy in zip((nodes, 0), policies, strict=True)
            ]
            means = [fmean(outcome.completion_s for outcome in each) for each in ends]
            found.append(means[0] / means[1] - 1)
        worse = [each for each in found if each > 1e-9]
        print(
            f"{what}: {len(worse)} of {seeds} longer, by {max(worse, default=0):.1%} at most; mean {fmean(found):+.1%}"
        )


if __name__ == "__main__":
    if sys.argv[1] == "random":
        small(int(sys.argv[2]))
    else:
        traces(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
