"""Jobs for the benchmark of elastic scaling: five models whose step times and gradient noise others measured."""

from __future__ import annotations

import csv
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Placement
from ddlprof.extensions.cluster.speeds import PredictedSpeeds, Speeds
from ddlprof.recommender import Measurement, Predictor, Target, Workload

MACHINE = "g4dn.12xlarge"
"""Four T4; Pollux measured on one to four of them."""
GPU_HOURS = (0.25, 4.0)
"""A job's length on one GPU at its best batch is drawn between these, no doubling likelier than another."""


@dataclass(frozen=True)
class Application:
    """What Pollux's simulator knows of a model (github.com/petuum/adaptdl, branch osdi21-artifact, sched/traces and
    simulator/traces, validation-*.csv).

    The gradient noise is that of a whole training: the progress of the run at a large batch, counted in updates at the
    smallest, over the updates it took.
    """

    trace_name: str
    smallest: int
    largest: int
    fits: int
    """The samples that fit a GPU: the most that were measured on one."""
    measured_batch: int
    updates: float
    """This and the next: at `measured_batch`, and how many they were worth at the smallest batch."""
    worth: float

    @property
    def noise_scale(self) -> float:
        """In samples. A batch s times the smallest gains g = s (n + 1) / (n + s) with a noise of n small batches."""
        scale, gain = self.measured_batch / self.smallest, self.worth / self.updates
        return self.smallest * scale * (gain - 1) / (scale - gain)


APPLICATIONS = {
    "resnet18_cifar": Application("cifar10", 128, 4096, 1024, 4096, 2011, 39084.6),
    "deepspeech2_gru": Application("deepspeech2", 20, 640, 80, 640, 1423, 28553.4),
    "bert_base": Application("bert", 12, 384, 12, 384, 480, 14789.7),
    "resnet50": Application("imagenet", 200, 12800, 200, 12800, 14461, 576528.2),
    "neumf_ml1m": Application("ncf", 256, 32768, 32768, 32768, 1548, 194285.2),
}
NOISE = {name: of.noise_scale for name, of in APPLICATIONS.items()}


def speeds_from(folder: Path) -> PredictedSpeeds:
    """One predictor for each model."""
    predictors = {name: Predictor(workload) for name, workload in workloads_from(folder).items()}
    return PredictedSpeeds(predictors, Target(MACHINE))


def workloads_from(folder: Path) -> dict[str, Workload]:
    """What is known of each model: steps on one GPU at all batches, on all placements at the middle one of these."""
    counts = {row["model"]: row for row in _rows(folder / "models.csv")}
    seen: dict[str, dict[tuple[tuple[int, ...], int], list[tuple[float, float, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in _rows(folder / "placements_train.csv"):
        if row["cluster"] == "aws" and row["placement"]:
            at = tuple(map(int, row["placement"])), int(float(row["batch_per_gpu"]))
            values = float(row["step_time_s"]), float(row["sync_time_s"]), row["precision"]
            seen[row["model"]][at].append(values)
    workloads = {}
    for name in APPLICATIONS:
        alone = sorted(batch for placement, batch in seen[name] if placement == (1,))
        measurements = [
            Measurement(
                MACHINE, placement=placement, batch_per_gpu=batch, step_s=fmean(step for step, _, _ in times),
                exposed_comm_s=0.0 if placement == (1,) else fmean(sync for _, sync, _ in times),
                precision={"amp-O1": "amp"}.get(times[0][2], times[0][2]),
            )
            for (placement, batch), times in seen[name].items()
            if placement == (1,) or batch == alone[len(alone) // 2]
        ]  # fmt: skip
        workloads[name] = Workload(
            name,
            layers=int(float(counts[name]["weight_layers"])),
            parameter_tensors=int(float(counts[name]["param_tensors"])),
            gradient_bytes=float(counts[name]["gradient_mb_fp32"]) * 1e6,
            measurements=measurements,
        )
    return workloads


def drawn(names: Sequence[str], seed: int, gap_s: float, count: int, most_gpus: int, speeds: Speeds) -> list[Job]:
    """Jobs of these models, all alike often, with exponential gaps between their submissions. Where they cannot choose
    they ask for 1, 2, 4 or 8 GPUs, each as full as it can be."""
    dice, submit_s, jobs = random.Random(seed), 0.0, []
    for number in range(count):
        name = dice.choice(names)
        of, asked = APPLICATIONS[name], dice.choice([1, 2, 4, 8])
        hours = math.exp(dice.uniform(*map(math.log, GPU_HOURS)))
        job = _job(str(number), submit_s, asked, min(of.fits * asked, of.largest), 1.0, name, most_gpus)
        batch = min(of.fits, of.largest)
        samples = hours * 3600 * batch / speeds.step(job, Placement((1,)), batch).step_s
        jobs.append(replace(job, samples=samples))
        submit_s += dice.expovariate(1 / gap_s)
    return jobs


def from_trace(path: Path, trace: str, most_gpus: int) -> list[tuple[Job, float]]:
    """A workload of Pollux with the published length of each job, without the model that has no step times. GPUs and
    batches asked for are Pollux's tuned ones; the work is all of a training."""
    names = {of.trace_name: name for name, of in APPLICATIONS.items()}
    jobs = []
    for row in _rows(path):
        if row["trace"] != trace or row["model"] not in names or not row["duration_s"]:
            continue
        if json.loads(row["extra"] or "{}").get("duration_estimated"):
            continue
        name = names[row["model"]]
        of = APPLICATIONS[name]
        gpus, batch, samples = int(row["gpus"]), int(row["batch"]), of.worth * of.smallest
        job = _job(row["job_id"], float(row["submit_s"]), gpus, batch, samples, name, most_gpus)
        jobs.append((job, float(row["duration_s"])))
    return jobs


def _job(job_id: str, submit_s: float, gpus: int, batch: int, samples: float, name: str, most_gpus: int) -> Job:
    of = APPLICATIONS[name]
    return Job(
        job_id, submit_s, gpus, samples, batch, model=name, max_gpus=most_gpus,
        min_batch=of.smallest, max_batch=of.largest, max_batch_per_gpu=of.fits,
    )  # fmt: skip


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
