"""`ddlprof cluster advise`: what jobs lose when they are spread, and hints for schedulers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, format_option, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlprof.cluster.advice import Ask, Wait
    from ddlprof.described_job import DescribedJob
    from ddlprof.report.advice.data import JobAdvice
    from recommender import Target

_USUAL_GPUS = 8
_MOST_GPUS = 100_000


FORMATS = ("table", "slurm", "volcano")

_Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run directories or URLs, or files of `ddlprof features`; runs of one job on different placements count"
        " together.",
    ),
]
_Gpus = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=_MOST_GPUS, help="GPUs of each job [the most of its runs].")
]
_PerNode = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=_MOST_GPUS, help="GPUs of one machine [of the instance type, or of the runs]."
    ),
]
_Instance = Annotated[str | None, typer.Option(metavar="TYPE", help="Machines of a cloud [those of the run].")]
_Gpu = Annotated[str | None, typer.Option(metavar="MODEL", help="GPUs outside a cloud, such as 'RTX 3090'.")]
_Interconnect = Annotated[
    str | None, typer.Option(metavar="LINK", help="With --gpu, links in a machine: pcie3..5 or nvlink1..5.")
]
_Network = Annotated[
    float | None, typer.Option(metavar="G", min=1e-3, max=1e6, help="With --gpu, Gbit/s between machines of a rack.")
]
_BetweenRacks = Annotated[
    float | None,
    typer.Option(metavar="G", min=1e-3, max=1e6, help="Gbit/s of a machine to machines of other racks, as under load."),
]
_Batch = Annotated[int | None, typer.Option(metavar="B", min=1, help="Samples per GPU and forward pass [as in RUN].")]
_Remaining = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long each job still runs on the closest GPUs, as in 12h or 2d.")
]
_History = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Past waits, a CSV file: gpus,level,waited_s; level is machine or rack."),
]
_RackTier = Annotated[
    int, typer.Option(metavar="T", min=1, max=100, help="Volcano: the tier of HyperNodes that are racks.")
]


def advise(
    run: _Runs,
    gpus: _Gpus = None,
    gpus_per_node: _PerNode = None,
    instance: _Instance = None,
    gpu: _Gpu = None,
    interconnect: _Interconnect = None,
    network_gbps: _Network = None,
    between_racks_gbps: _BetweenRacks = None,
    batch: _Batch = None,
    remaining: _Remaining = None,
    history: _History = None,
    rack_tier: _RackTier = 1,
    out: Out = None,
    format: Annotated[
        str | None,
        format_option(
            FORMATS, besides="; slurm and volcano: hints for that scheduler, with --remaining", also=["--emit"]
        ),
    ] = None,
) -> None:
    """Say what jobs lose when their GPUs are far apart, and how long it is worth waiting for closer ones.

    Measured by the runs where they had such placements, else predicted.
    """
    from ddlprof.base.units import parse_duration
    from ddlprof.cluster.advice import read_history
    from ddlprof.report.advice import slurm, text, volcano

    if instance is not None and (gpu is not None or network_gbps is not None or interconnect is not None):
        raise UserError(
            "--instance tells GPU and links: give it alone, or --gpu with --interconnect and --network-gbps"
        )
    if gpu is None and (network_gbps is not None or interconnect is not None):
        raise UserError("--network-gbps and --interconnect describe a machine: give its --gpu too")
    places = wanted(out, format, FORMATS)
    if remaining is None and any(place.format != "table" for place in places.places):
        raise UserError("hints need --remaining TIME: how long a job still runs decides how long it pays to wait")
    rest_s = None if remaining is None else parse_duration(remaining, "--remaining")
    waits = None if history is None else read_history(history)
    jobs = [
        _advice(job, _machine(job, instance, gpu, interconnect, network_gbps), gpus, gpus_per_node,
                between_racks_gbps, batch, rest_s, waits)
        for job in _jobs(run, batch)
    ]  # fmt: skip
    places.write(
        {"table": text.render, "slurm": slurm.render, "volcano": lambda jobs: volcano.render(jobs, rack_tier)}, jobs
    )


def _jobs(runs: Sequence[str], batch: int | None) -> list[DescribedJob]:
    """One for each job: runs of one model under one name are of the same."""
    from ddlprof.described_job import load_job

    batches = (batch,) if batch else ()
    groups: dict[tuple[object, ...], list[str]] = {}
    for run in runs:
        job = load_job([run], batches)
        model = job.workload
        groups.setdefault((job.name, model.layers, model.parameter_tensors, model.gradient_bytes), []).append(run)
    return [load_job(group, batches) for group in groups.values()]


def _machine(
    job: DescribedJob, instance: str | None, gpu: str | None, interconnect: str | None, network_gbps: float | None
) -> Target:
    """The machine asked for, else that of the run with the most GPUs."""
    from recommender import Target

    if instance is not None or gpu is not None:
        return Target(instance, gpu_model=gpu, interconnect=interconnect, network_gbps=network_gbps)
    measured = max(job.workload.measurements, key=lambda each: sum(each.placement), default=None)
    if measured is None:
        raise UserError(f"{job.name}: nothing tells where it runs: give --instance TYPE, or --gpu MODEL")
    return Target(
        measured.instance_type,
        gpu_model=measured.gpu_model,
        interconnect=measured.interconnect,
        network_gbps=measured.network_gbps,
    )


def _advice(
    job: DescribedJob,
    machine: Target,
    gpus: int | None,
    per_machine: int | None,
    between_racks_gbps: float | None,
    batch: int | None,
    rest_s: float | None,
    history: Sequence[Wait] | None,
) -> JobAdvice:
    from ddlprof.cluster.advice import advise as advice_for
    from ddlprof.report.advice.data import JobAdvice
    from recommender import Predictor
    from recommender.plans.candidates import describe_job
    from recommender.target import default_catalog, machine_of

    described = describe_job(job.workload, (batch,) if batch else (), keep_global_batch=False)
    target = replace(machine, batch_per_gpu=described.batches_per_gpu[0], grad_accum=described.grad_accum)
    placements = [each.placement for each in job.workload.measurements]
    wanted = gpus or max(map(sum, placements), default=_USUAL_GPUS)
    there = machine_of(target, default_catalog()).gpus
    on_one = per_machine or there or max((max(each) for each in placements), default=_USUAL_GPUS)
    ask = replace(_ask(wanted, on_one, target, between_racks_gbps), gradient_bytes=job.workload.gradient_bytes)
    return JobAdvice(
        advice_for(job.name, ask, job.workload.measurements, Predictor(job.workload)), job.command, rest_s, history
    )


def _ask(gpus: int, per_machine: int, target: Target, between_racks_gbps: float | None) -> Ask:
    from ddlprof.cluster.advice import Ask
    from recommender.target import default_catalog

    if between_racks_gbps is None:
        return Ask(gpus, per_machine, target)
    described = target
    if target.instance_type is not None:  # the catalogue knows one network of a type
        found = default_catalog().instance(target.instance_type)
        described = replace(target, instance_type=None, gpu_model=found.gpu_model, interconnect=found.interconnect)
    return Ask(gpus, per_machine, target, replace(described, network_gbps=between_racks_gbps))
