"""How fast a team's own jobs teach: errors of the next job after 0, 1, 3, 10 and 30 jobs, as a Markdown table.

Published tables stand for a team's runs. The next job is of a model that none of the jobs before has, nothing of it is
measured, or its steps on one GPU are; 0 jobs are the shipped predictions. `used` is what `ddlprof learn` would do.

    python -m scripts.fit.learning_curves --data ../shared/data
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ddlprof.extensions.learn.cases import target_of
from ddlprof.extensions.learn.judge import Job, fitted_to, learn
from ddlprof.recommender import Coefficients, Measurement, Predictor, Workload
from ddlprof.recommender.communication.coefficients import LinkClass
from scripts.bench.jobs import progress
from scripts.fit import published
from scripts.fit.communication_errors import table
from scripts.fit.placements import MACHINES, PublishedJob, read_jobs
from scripts.fit.throughput import read_profet

SIZES = (0, 1, 3, 10, 30)
DRAWS = 3
"""The sets of jobs drawn for each next job and size."""
MOST_POINTS, MOST_BATCHES = 12, 4
"""The measured placements of a job, and its batches on one GPU, that a team is taken to have run."""
CLUSTERS = {"rtx": ("RTX 2080 Ti over PCIe", "ethernet"), "aws": ("T4 over PCIe", "flow_capped"),
            "dgx": ("A100 over NVLink", "rdma, A100")}  # fmt: skip
"""The names of the shipped links that each cluster was fitted into."""


@dataclass(frozen=True)
class Team:
    """The jobs of one team, and the coefficients that have not seen its machines."""

    name: str
    jobs: tuple[tuple[str, Workload], ...]
    """Each with its model, which is left out as a whole."""
    shipped: Coefficients


def clusters(folder: Path) -> Iterator[Team]:
    """One cluster of Pollux and two of Sia, each without the links that were fitted there."""
    jobs = read_jobs(folder)
    for cluster, (inside, between) in CLUSTERS.items():
        mine = [job for job in jobs if job.cluster == cluster]
        yield Team(cluster, tuple((job.model, _run(job)) for job in mine), _without(inside, between))


def _run(job: PublishedJob) -> Workload:
    """The job as a team ran it: some placements, drawn evenly, with the computation that its parts leave."""
    draw = random.Random(f"{job.cluster} {job.model}")
    alone = sorted(job.alone.items())
    few = [point for _, point in alone[:: -(-len(alone) // MOST_BATCHES)]]
    points = [*few, *draw.sample(job.together, min(MOST_POINTS, len(job.together)))]
    name = published.name_of("Pollux OSDI21", "||0", job.model)
    measured = [
        Measurement(
            **MACHINES[job.cluster], placement=point.placement, batch_per_gpu=point.batch_per_gpu,
            step_s=point.step_s, exposed_comm_s=point.sync_s if sum(point.placement) > 1 else 0.0,
            precision=job.precision,
        )
        for point in points
    ]  # fmt: skip
    return Workload(
        job.model, layers=job.layers, parameter_tensors=job.tensors, gradient_bytes=job.gradient_bytes,
        step=published.steps()[name] if name else None, measurements=measured,
    )  # fmt: skip


def _without(inside: str, between: str) -> Coefficients:
    """The shipped coefficients without the links that were fitted on a cluster. What stays of it is its part in the
    general prior, and in the computation of its GPU."""
    shipped = Coefficients.shipped()
    links = shipped.communication
    rows = tuple(row for row in links.inside if row.name != inside)
    return replace(shipped, communication=replace(links, inside=rows, between=_others(links.between, between)))


def _others(rows: Sequence[LinkClass], without: str) -> tuple[LinkClass, ...]:
    """The networks, with another one in place of the one that is left out."""
    left = [row for row in rows if row.name != without]
    gone = next(row for row in rows if row.name == without)
    if any(row.kind == gone.kind for row in left):
        return tuple(left)
    like = next(row for row in left if row.kind in ("ethernet", "flow_capped"))
    return (*left, replace(like, name=gone.name, kind=gone.kind, reference=gone.reference, most=2))


def profet(folder: Path) -> Iterator[Team]:
    """PROFET's models and image sizes on three GPUs of AWS, in TensorFlow."""
    rows = read_profet(folder)
    jobs = []
    for name, of in rows.groupby("job"):
        model = str(of.model.iloc[0])
        network = published.name_of("PROFET", str(name), model)
        steps: Iterable[Any] = of.itertuples(index=False)
        measured = [
            Measurement(placement=(1,), batch_per_gpu=int(row.batch), step_s=row.seconds, gpu_model=row.gpu)
            for row in steps
        ]
        step = published.steps()[network] if network else None
        jobs.append((model, Workload(str(name), parameter_tensors=int(of.tensors.iloc[0]), step=step,
                                     measurements=measured)))  # fmt: skip
    yield Team("PROFET", tuple(jobs), Coefficients.shipped())


def nanotron(folder: Path) -> Iterator[Team]:
    """Llama-like models of nanotron on H100 with data parallelism alone: each number of GPUs and sharding is a job."""
    with (folder / "nanotron_ultrascale.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["tp"] == row["pp"] == row["cp"] == "1"]
    jobs: dict[tuple[str, str, str], list[Measurement]] = defaultdict(list)
    facts = {}
    for row in rows:
        if row["status"] != "ok" or row["checkpointing"] != "none":
            continue
        gpus, nodes = int(row["gpus"]), int(row["nodes"])
        key = row["model"], row["gpus"], row["zero_stage"]
        facts[key] = row
        jobs[key].append(
            Measurement(
                placement=(gpus // nodes,) * nodes, batch_per_gpu=int(row["micro_batch"]), step_s=float(row["step_s"]),
                precision="bf16", strategy="zero" if row["zero_stage"] == "1" else "ddp",
                grad_accum=int(row["grad_accum"]), gpu_model="H100-SXM5-80GB", network_gbps=3200.0,
            )
        )  # fmt: skip
    yield Team("nanotron", tuple((" ".join(key), _llama(facts[key], of)) for key, of in jobs.items()),
               Coefficients.shipped())  # fmt: skip


def _llama(row: dict[str, str], measured: Sequence[Measurement]) -> Workload:
    parameters, layers, hidden, length = (float(row[name]) for name in ("params", "layers", "hidden", "seq"))
    flops = 6 * parameters * length + 6 * layers * hidden * length**2
    return Workload(
        row["model"], layers=int(7 * layers), parameter_tensors=int(9 * layers), gradient_bytes=4 * parameters,
        flops_per_sample=flops, measurements=measured,
    )  # fmt: skip


def errors(job: Workload, shipped: Coefficients, before: Sequence[Job], on_one: bool) -> list[float]:
    """Relative errors of the steps of a job, or of those on several GPUs where those on one are known."""
    learned = fitted_to(before) if before else None
    alone = [m for m in job.measurements if sum(m.placement) == 1]
    known = replace(job, measurements=alone if on_one else ())
    predictor = Predictor(known, coefficients=shipped, learned=learned)
    found = []
    for m in job.measurements:
        if on_one and m in alone:
            continue
        found.append(abs(predictor.predict(target_of(m)).step_s / m.step_s - 1))
    return found


def curve(team: Team, on_one: bool) -> Iterator[list[str]]:
    """A row: the mean over the models of the median error of their jobs, after so many jobs of other models."""
    cells, told = [], {id(job): Job.of(job, team.shipped) for _, job in team.jobs}
    for size in SIZES:
        by_model: dict[str, list[float]] = defaultdict(list)
        for model, job in team.jobs:
            draw = random.Random(f"{team.name} {job.name} {len(by_model)}")
            others = [told[id(each)] for name, each in team.jobs if name != model]
            if size > len(others):
                continue
            for _ in range(DRAWS if 0 < size < len(others) else 1):
                by_model[model].append(median(errors(job, team.shipped, draw.sample(others, size), on_one)))
        progress(f"{team.name}, {size} jobs")
        cells.append(f"{fmean(map(fmean, by_model.values())):.1%}" if by_model else "")
    known = "its steps on one GPU" if on_one else "nothing"
    yield [team.name, str(len(team.jobs)), known, *cells]


def used(team: Team) -> list[str]:
    """What `ddlprof learn` makes of all jobs of the team."""
    lesson = learn([job for _, job in team.jobs], team.shipped)
    rows = [f"{row.what} {row.of} {row.before:.1%} to {row.after:.1%}" for row in lesson.errors if row.used]
    return [team.name, "yes" if lesson.learned else "no", "; ".join(rows) or lesson.why_not]


def coverage(team: Team) -> list[str]:
    """The share of steps inside their 80 % interval, nothing measured, of models that `ddlprof learn` has not seen:
    mean over the models, as shipped and as learned, and the mean width (upper over lower end)."""
    shares: tuple[list[float], list[float]] = ([], [])
    widths: tuple[list[float], list[float]] = ([], [])
    for model in sorted({name for name, _ in team.jobs}):
        learned = learn([job for name, job in team.jobs if name != model], team.shipped).learned
        for number, with_learned in enumerate((None, learned)):
            inside, width = [], []
            for job in (job for name, job in team.jobs if name == model):
                unmeasured = replace(job, measurements=())
                predictor = Predictor(unmeasured, coefficients=team.shipped, learned=with_learned)
                for m in job.measurements:
                    found = predictor.predict(target_of(m))
                    inside.append(found.low_s <= m.step_s <= found.high_s)
                    width.append(found.high_s / found.low_s)
            shares[number].append(fmean(inside))
            widths[number].append(median(width))
        progress(f"{team.name}, without {model}")
    return [team.name, *(f"{fmean(s):.0%} ({median(w):.1f})" for s, w in zip(shares, widths, strict=True))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published measurements")
    chosen = parser.parse_args(arguments)
    throughput, layouts = chosen.data / "throughput", chosen.data / "layouts"
    teams = [*clusters(throughput), *profet(throughput), *nanotron(layouts)]
    rows = []
    for team in teams:
        several = any(sum(m.placement) > 1 for _, job in team.jobs for m in job.measurements)
        alone = any(sum(m.placement) == 1 for _, job in team.jobs for m in job.measurements)
        rows += [row for on_one in (False, True)[: 1 + (several and alone)] for row in curve(team, on_one)]
    print(table(("team", "jobs", "measured of the next job", *map(str, SIZES)), rows))
    print(table(("team", "used", "jobs left out"), map(used, teams)))
    print(table(("team", "inside as shipped (width)", "as learned"), map(coverage, teams)))


if __name__ == "__main__":
    main()
