"""How long a simulation takes for each policy, and how much memory: 500 jobs on 64 GPUs, 20,000 jobs on 4,096.

Each simulation is a process of its own. Prints Markdown for docs/benchmarks.md. Without `--trace` the jobs are drawn
(GPUs, durations and arrivals as Gavel's simulator draws them, Narayanan et al., OSDI 2020, with larger jobs besides);
with it, the jobs of all the traces that are named are taken together, each stretched to the same span.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from dataclasses import replace

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.penalties import PenalisedSpeeds, shipped_penalties
from ddlprof.extensions.cluster.policy import policy_factory, policy_names
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.simulation.metrics import summary
from ddlprof.extensions.cluster.trace import fitted, read_trace, rescaled, split_source
from scripts.bench.jobs import print_table, progress
from scripts.bench.merge import run as run_python

SIZES = {"small": (500, "8x8", 10.0), "large": (20_000, "8x64x8", 300.0)}
"""Jobs, cluster, and the most seconds of processor time that a policy may take."""
LOAD = 0.9
GIVEN_UP_S = 900.0
"""Of processor time."""
SPAN_S = 1e6
GPUS, GPU_SHARES = (1, 2, 4, 8, 16, 32), (60, 10, 12, 12, 4, 2)


def drawn(count: int, seed: int = 1) -> list[Job]:
    """Philly-like jobs: four in five take 60 s x 10^U(1.5, 3), the others 60 s x 10^U(3, 4)."""
    source = random.Random(seed)
    jobs, now_s = [], 0.0
    for number in range(count):
        now_s += source.expovariate(1.0)
        exponent = source.uniform(1.5, 3) if source.random() < 0.8 else source.uniform(3, 4)
        (gpus,) = source.choices(GPUS, GPU_SHARES)
        jobs.append(Job(str(number), now_s, gpus, 60 * 10**exponent * gpus, gpus, 1.0))
    return jobs


def jobs_of(sources: list[str], count: int) -> list[Job]:
    """The first so many jobs of all traces together."""
    if not sources:
        return drawn(count)
    jobs = []
    for source in sources:
        read = read_trace(*split_source(source))
        last_s = max(job.submit_s for job in read) or 1.0
        jobs += [replace(job, job_id=f"{source}/{job.job_id}", submit_s=job.submit_s / last_s * SPAN_S) for job in read]
    return sorted(jobs, key=lambda job: job.submit_s)[:count]


def one(name: str, size: str, load: float, sources: list[str]) -> None:
    """Prints the seconds of processor time and the figures of one simulation, in this process."""
    count, text, _ = SIZES[size]
    cluster = parse_cluster(text)
    jobs, _ = fitted(jobs_of(sources, count), cluster, "drop")
    jobs = rescaled(jobs, load, cluster)
    ended = [0]
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, GIVEN_UP_S)  # processor time
    begin_s = time.process_time()
    try:
        speeds = PenalisedSpeeds(cluster, shipped_penalties())
        simulated = simulate(jobs, cluster, policy_factory(name)(), speeds, progress=lambda count: ended.append(count))
    except TimeoutError:
        print(len(jobs), f">{GIVEN_UP_S:.0f} ({ended[-1]:,} ended)", *["-"] * 4, sep="\t")
        return
    taken_s = time.process_time() - begin_s
    found = summary(simulated, cluster.gpus)
    waiting = max(entry[2] for entry in simulated.usage)
    figures = [f"{simulated.decisions:,}", f"{waiting:,}", f"{found.stops:,}", f"{found.completion_mean_s / 3600:.1f}"]
    print(len(jobs), f"{taken_s:.1f}", *figures, sep="\t")


def _out_of_time(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="append", default=[], help="FILE or FILE:NAME; may be given several times")
    parser.add_argument("--policies", default=",".join(policy_names()))
    parser.add_argument("--sizes", default="small,large")
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.one, given.sizes, given.load, given.trace)
        return
    rows = []
    for size in given.sizes.split(","):
        _, text, limit_s = SIZES[size]
        for name in given.policies.split(","):
            progress(f"{name}, {size}")
            words = ["-m", "scripts.bench.cluster_scale", "--one", name, "--sizes", size, "--load", str(given.load)]
            for source in given.trace:
                words += ["--trace", source]
            done = run_python(*words)
            jobs, taken, *figures = done.output.strip().split("\t")
            rows.append(
                [f"{int(jobs):,} jobs, {text}", name, taken, f"{limit_s:.0f}", f"{done.peak_mib:.0f}", *figures]
            )
    print(f"load {given.load:g}, load average of the machine {os.getloadavg()[0]:.1f}\n", file=sys.stderr)
    print_table(
        ["trace", "policy", "processor s", "limit", "MiB", "questions", "most waiting", "stops", "mean completion h"],
        rows,
    )


if __name__ == "__main__":
    main()
