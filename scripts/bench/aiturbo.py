"""AITurbo and Optimus beside least attained service, on measured step times, by the share of predictable jobs.

    python -m scripts.bench.aiturbo PLACEMENTS.csv [--seeds 4]

PLACEMENTS.csv has Sia's measurements (columns cluster, app, placement, batch_per_gpu, step_time_s, sync_time_s). 40 T4
in ten machines, 100 jobs of five applications, arrivals as Poisson. Prints mean completion times in minutes and, at
each share, how far AITurbo is below the others. `las, same sizes` serves as `las` does and shares GPUs out as AITurbo
does, so that what is left between them is the order alone; `remaining first` is no published policy: predictable jobs
by the service that remains, the others by the service attained, in one list.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from ddlprof.extensions.cluster.jobs import Job, JobState, forecasts
from ddlprof.extensions.cluster.machines import Placement, parse_cluster
from ddlprof.extensions.cluster.policies.aiturbo import Aiturbo, Optimus, RemainingTimes
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policies.las import Las
from ddlprof.extensions.cluster.policies.srtf import Srtf
from ddlprof.extensions.cluster.policy import Policy
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import StepTime

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
GAPS_S = (60.0, 110.0, 200.0, 500.0)
JOBS, CLUSTER, ERROR = 100, "10x4", 0.25
BATCH = {"cifar10": 512, "imagenet": 400, "deepspeech2": 160, "bert": 48, "ncf": 8192}
GPUS = ((1, 0.4), (2, 0.25), (4, 0.25), (8, 0.1))
SHORTEST_S, LONGEST_S = 1200.0, 10_800.0


class Measured:
    """Step times from the file: between two batches in proportion, in several passes above the largest."""

    def __init__(self, path: Path) -> None:
        rows: dict[tuple[str, tuple[int, ...]], list[tuple[float, float, float]]] = defaultdict(list)
        with path.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row["cluster"] == "aws":
                    placement = tuple(sorted(map(int, row["placement"]), reverse=True))
                    entry = (float(row["batch_per_gpu"]), float(row["step_time_s"]), float(row["sync_time_s"] or 0))
                    rows[row["app"], placement].append(entry)
        self._rows = {key: sorted({row[0]: row for row in found}.values()) for key, found in rows.items()}
        self._known: dict[tuple[str, tuple[int, ...], int], StepTime] = {}

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """Of the placement measured that is most like this one."""
        key = job.model or "", placement.gpus_per_machine, batch
        if key not in self._known:
            self._known[key] = self._found(*key)
        return self._known[key]

    def _found(self, app: str, placement: tuple[int, ...], batch: int) -> StepTime:
        gpus = sum(placement)
        of_app = [measured for name, measured in self._rows if name == app]
        nearest = min(of_app, key=lambda each: (abs(sum(each) - gpus), abs(len(each) - len(placement)), each))
        rows = self._rows[app, nearest]
        share = batch / gpus
        passes = max(math.ceil(share / rows[-1][0]), 1)
        if len(rows) == 1:
            rows = rows * 2
        right = min(max(bisect_right([row[0] for row in rows], share / passes), 1), len(rows) - 1)
        (x0, step0, sync0), (x1, step1, sync1) = rows[right - 1], rows[right]
        part = min(max((share / passes - x0) / max(x1 - x0, 1e-9), 0.0), 1.0)
        once_s, sync_s = step0 + part * (step1 - step0), sync0 + part * (sync1 - sync0)
        step_s = once_s + (passes - 1) * max(once_s - sync_s, 0.0)
        return StepTime(step_s, step_s, step_s, min(sync_s, step_s))


def jobs(measured: Measured, gap_s: float, seed: int, elastic: bool) -> list[Job]:
    """Durations between 20 minutes and 3 hours, as many in each doubling; 1 to 8 GPUs, up to 16 where elastic."""
    drawn, cluster, now_s, made = random.Random(f"sia{seed}"), parse_cluster(CLUSTER), 0.0, []
    for number in range(JOBS):
        app = drawn.choice(sorted(BATCH))
        gpus = drawn.choices([each for each, _ in GPUS], [weight for _, weight in GPUS])[0]
        duration_s = math.exp(drawn.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        asked = Job(str(number), now_s, gpus, 1.0, BATCH[app], None, app, max_gpus=16 if elastic else None)
        step_s = measured.step(asked, cluster.packed(gpus), asked.batch).step_s
        samples = duration_s / step_s * asked.batch
        made.append(Job(asked.job_id, now_s, gpus, samples, asked.batch, step_s, app, max_gpus=asked.max_gpus))
        now_s += drawn.expovariate(1 / gap_s)
    return made


class LasSameSizes(Aiturbo):
    """The order of `las`, the sizes of AITurbo."""

    def ordered(self, states: Sequence[JobState], now_s: float, forecast: RemainingTimes) -> list[JobState]:
        """As `Las` does."""
        return self.in_queues(states, now_s)


class RemainingFirst(Aiturbo):
    """What remains where it is known, else what was attained, in one list."""

    def ordered(self, states: Sequence[JobState], now_s: float, forecast: RemainingTimes) -> list[JobState]:
        """In GPU-seconds."""

        def service(state: JobState) -> float:
            is_known = state.remaining_at(now_s) is not None
            return forecast.remaining_gpu_s(state) if is_known else state.held_at(now_s)

        return sorted(self.in_queues(states, now_s), key=service)


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "srtf": Srtf,
    "las": Las,
    "optimus": Optimus,
    "aiturbo": Aiturbo,
    "las, same sizes": LasSameSizes,
    "remaining first": RemainingFirst,
}


def mean_completion_min(
    measured: Measured, name: str, gap_s: float, share: float, seed: int, elastic: bool, known_from: float
) -> float:
    """Of one simulation."""
    expect = forecasts(share, ERROR, seed, known_from)
    trace = jobs(measured, gap_s, seed, elastic)
    simulated = simulate(trace, parse_cluster(CLUSTER), POLICIES[name](), measured, expect=expect)
    return statistics.fmean(outcome.completion_s for outcome in simulated.outcomes) / 60


def table(measured: Measured, gap_s: float, elastic: bool, known_from: float, seeds: int) -> None:
    """Prints a regime."""
    offered = [sum(job.gpus * (job.ideal_s or 0) for job in jobs(measured, gap_s, n, False)) for n in range(seeds)]
    spans = [jobs(measured, gap_s, n, False)[-1].submit_s for n in range(seeds)]
    load = statistics.fmean(gpu_s / 40 / span for gpu_s, span in zip(offered, spans, strict=True))
    what = "elastic jobs" if elastic else "jobs of a fixed size"
    print(f"\n{what}, mean gap {gap_s:g} s, load {load:.1f}, forecasts from {known_from:.0%} of the work on")
    print(f"{'predictable':>16}" + "".join(f"{share:9.0%}" for share in SHARES))
    means: dict[str, list[float]] = {}
    for name in POLICIES:
        cases = [(name, gap_s, share, seed, elastic, known_from) for share in SHARES for seed in range(seeds)]
        found = [mean_completion_min(measured, *case) for case in cases]
        means[name] = [statistics.fmean(found[at : at + seeds]) for at in range(0, len(found), seeds)]
        print(f"{name:>16}" + "".join(f"{mean:9.1f}" for mean in means[name]), flush=True)
    for name in ("las", "optimus", "las, same sizes"):
        apart = [ours / theirs - 1 for ours, theirs in zip(means["aiturbo"], means[name], strict=True)]
        print(f"{'aiturbo / ' + name:>26}  " + " ".join(f"{each:+.1%}" for each in apart), flush=True)


def main() -> None:
    """Prints all regimes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    measured = Measured(asked.placements)
    for elastic in (False, True):
        for gap_s in GAPS_S:
            table(measured, gap_s, elastic, 0.0, asked.seeds)
    table(measured, GAPS_S[1], False, 0.1, asked.seeds)


if __name__ == "__main__":
    main()
