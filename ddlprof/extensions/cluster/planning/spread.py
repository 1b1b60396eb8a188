"""How much jobs lose when their GPUs are far apart, and how long to wait for closer ones, predicted from their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError
from ddlprof.base.text import plain
from ddlprof.base.units import listed

if TYPE_CHECKING:
    from ddlprof.extensions.cluster.advice import Advice, Wait
    from ddlprof.extensions.cluster.report.advice.data import JobAdvice
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Learned, Target

_USUAL_GPUS = 8


def spread_advice(
    runs: Sequence[str],
    machine: Target | None = None,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    between_racks_gbps: float | None = None,
    batch: int | None = None,
    remaining_s: float | None = None,
    history: Sequence[Wait] | None = None,
    learned: Learned | None = None,
    remaining_of: Mapping[str, float] | None = None,
) -> list[JobAdvice]:
    """The advice for each job that the runs are of, as `ddlprof cluster advise` shows it.

    `machine` is where the jobs would run (None: as the run with the most GPUs did), `batch` the samples of a GPU in a
    forward pass, `remaining_s` how long each job still runs on the closest GPUs, `remaining_of` the same of jobs by
    name, `learned` what other runs taught. A folder of several runs stands for all of them. Raises UserError,
    PredictionError or CatalogError for what cannot be read or is not known.
    """
    from ddlprof.extensions.cluster.report.advice.data import JobAdvice

    jobs = _jobs(_each_run(runs), batch, learned)
    known = remaining_of or {}
    unknown = known.keys() - {job.name for job in jobs}
    if unknown:
        raise UserError(
            f"no job is called {plain(min(unknown))}; there are {listed([job.name for job in jobs], most=20)}"
        )
    return [
        JobAdvice(
            _advice(job, machine or _measured_machine(job), gpus, gpus_per_node, between_racks_gbps, batch),
            job.command,
            known.get(job.name, remaining_s),
            history,
        )
        for job in jobs
    ]


def _each_run(runs: Sequence[str]) -> list[str]:
    """The runs, with the directories of its runs in place of a folder of several jobs."""
    from ddlprof.store.reader import runs_in

    found: list[str] = []
    for run in runs:
        inside = runs_in([run]) if Path(run).is_dir() else []
        if len(inside) < 2:
            found.append(run)
            continue
        for parts in inside:
            if len(parts) > 1:
                raise UserError(f"{run}: {listed(parts)} are parts of one run: put them into a folder of their own")
            found += parts
    return found


def _jobs(runs: Sequence[str], batch: int | None, learned: Learned | None) -> list[DescribedJob]:
    """The runs as jobs: runs of one model under one name belong to one job."""
    from ddlprof.planning.job import identity, load_job

    batches = (batch,) if batch else ()
    groups: dict[tuple[object, ...], list[str]] = {}
    for run in runs:
        groups.setdefault(identity(load_job([run], batches)), []).append(run)
    return [replace(load_job(group, batches), learned=learned) for group in groups.values()]


def _measured_machine(job: DescribedJob) -> Target:
    """The machine of the run with the most GPUs."""
    from ddlprof.recommender import Target

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
    gpus_per_node: int | None,
    between_racks_gbps: float | None,
    batch: int | None,
) -> Advice:
    from ddlprof.extensions.cluster.advice import Ask, advise
    from ddlprof.recommender import Predictor
    from ddlprof.recommender.plans.candidates import describe_job
    from ddlprof.recommender.target import default_catalog, machine_of

    described = describe_job(job.workload, (batch,) if batch else (), keep_global_batch=False)
    target = replace(machine, batch_per_gpu=described.batches_per_gpu[0], grad_accum=described.grad_accum)
    placements = [each.placement for each in job.workload.measurements]
    wanted = gpus or max(map(sum, placements), default=_USUAL_GPUS)
    there = machine_of(target, default_catalog()).gpus
    on_one = gpus_per_node or there or max((max(each) for each in placements), default=_USUAL_GPUS)
    ask = Ask(wanted, on_one, target, _between_racks(target, between_racks_gbps), job.workload.gradient_bytes)
    return advise(job.name, ask, job.workload.measurements, Predictor(job.workload, learned=job.learned))


def _between_racks(target: Target, network_gbps: float | None) -> Target | None:
    """The same machine with the network between racks; None: that is not known."""
    from ddlprof.recommender.target import default_catalog

    if network_gbps is None:
        return None
    described = target
    if target.instance_type is not None:  # the catalogue knows one network of a type
        found = default_catalog().instance(target.instance_type)
        described = replace(target, instance_type=None, gpu_model=found.gpu_model, interconnect=found.interconnect)
    return replace(described, network_gbps=network_gbps)
