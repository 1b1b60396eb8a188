"""From the file of `ddlprof elastic` to jobs on a cluster and what is known of their speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import DdlprofError, UserError
from ddlprof.base.units import count

if TYPE_CHECKING:
    from ddlprof.extensions.cluster.elastic.jobs_file import Line
    from ddlprof.extensions.cluster.jobs import Job
    from ddlprof.extensions.cluster.machines import Cluster
    from ddlprof.extensions.cluster.speeds import Speeds
    from ddlprof.recommender import Learned, Measurement, Predicts, Target, Workload


@dataclass(frozen=True)
class ElasticQuestion:
    """The input of the answer: the jobs, the cluster, and the predicted speeds."""

    lines: Sequence[Line]
    """The lines of the file in the order of submission, which `jobs` share."""
    jobs: Sequence[Job]
    cluster: Cluster
    speeds: Speeds
    words: str
    """The GPUs and machines of the cluster in words."""
    notes: Sequence[str]


def read_question(
    path: Path,
    gpus: int,
    per_machine: int | None,
    instance: str | None,
    gpu_model: str | None,
    learned: Learned | None = None,
) -> ElasticQuestion:
    """Reads the file of jobs and predicts their speeds. Raises `DdlprofError` for what cannot be answered."""
    from ddlprof.extensions.cluster.elastic.jobs_file import read_jobs
    from ddlprof.extensions.cluster.speeds import PredictedSpeeds

    if instance and gpu_model:
        raise UserError("give --instance or --gpu, not both")
    lines = sorted(read_jobs(path), key=lambda line: line.submit_s)
    loaded: dict[str, Workload] = {}
    workloads = [workload_of(line, path.parent, loaded) for line in lines]
    machine = machine_of_jobs(lines, workloads, instance, gpu_model)
    size = per_machine or _gpus_of(machine) or gpus
    predictors = _predictors(lines, workloads, learned)
    jobs = [
        job_of(line, workload, predictors[line.name], machine, gpus)
        for line, workload in zip(lines, workloads, strict=True)
    ]
    own = [line.name for line, workload in zip(lines, workloads, strict=True) if not _of_gpus(workload)]
    return ElasticQuestion(
        lines=lines,
        jobs=jobs,
        cluster=_cluster(gpus, size),
        speeds=PredictedSpeeds(predictors, machine),
        words=_words(gpus, size, machine),
        notes=[*([learned.sentence] if learned else []), *_notes(own, jobs)],
    )


def noise_scales(lines: Sequence[Line], is_asked: bool) -> dict[str, float]:
    """The gradient noise scales by job name; empty unless asked for. Raises `UserError` where no job has one."""
    found = {line.name: line.noise_scale for line in lines if is_asked and line.noise_scale is not None}
    if is_asked and not found:
        raise UserError("--stat-eff: no job has a noise_scale; see docs/elastic.md for how it is measured")
    return found


def require_samples(lines: Sequence[Line]) -> None:
    """Raises `UserError` naming the first job whose work is not known."""
    for line in lines:
        if line.samples is None:
            raise UserError(f"--simulate: {line.name} has no samples, the number it still trains with")


def workload_of(line: Line, folder: Path, loaded: dict[str, Workload] | None = None) -> Workload:
    """The workload of a job; paths are relative to the file of jobs. `loaded` has those that other jobs name, too.
    Raises `UserError` naming the job."""
    from ddlprof.extensions.cluster.elastic.jobs_file import measured_steps
    from ddlprof.planning.job import load_job

    inline = measured_steps(line)
    if inline is not None:
        return inline
    if loaded is not None and line.run in loaded:
        return loaded[line.run]
    sources = [source if "://" in source else str(folder / source) for source in line.sources]
    try:
        found = load_job(sources).workload
        if loaded is not None:
            loaded[line.run] = found
        return found
    except DdlprofError as error:
        raise UserError(f"{line.name}: {error}") from None


def _of_gpus(workload: Workload) -> bool:
    """Whether the recommender can predict the job: it was measured on GPUs, or is known by its counts alone."""
    return not workload.measurements or any(m.instance_type or m.gpu_model for m in workload.measurements)


def machine_of_jobs(
    lines: Sequence[Line], workloads: Sequence[Workload], instance: str | None, gpu_model: str | None
) -> Target:
    """The machines of the cluster: as asked for, else those on which the jobs were measured."""
    from ddlprof.recommender import Target

    if instance or gpu_model:
        return Target(instance, gpu_model=gpu_model)
    found: dict[Target, str] = {}
    for line, workload in zip(lines, workloads, strict=True):
        for m in workload.measurements:
            if m.instance_type or m.gpu_model:
                here = Target(m.instance_type)
                if m.instance_type is None:
                    here = Target(gpu_model=m.gpu_model, interconnect=m.interconnect, network_gbps=m.network_gbps)
                found.setdefault(here, line.name)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise UserError(
            f"{first} was measured on {one.instance_type or one.gpu_model}, {second} on"
            f" {other.instance_type or other.gpu_model}: say which machines there are with --instance or --gpu"
        )
    if not found and any(not workload.measurements for workload in workloads):
        raise UserError("say which machines there are with --instance or --gpu: no job was measured on a GPU")
    return next(iter(found), Target())


def _gpus_of(machine: Target) -> int | None:
    from ddlprof.instance_catalog import load

    return load().instance(machine.instance_type).gpus if machine.instance_type else None


def predictor_of(workload: Workload, learned: Learned | None = None, layout: str = "") -> Predicts:
    """The recommender's predictor where it can predict the job, else one from the job's own measurements. A job with a
    layout keeps it on any number of GPUs."""
    from ddlprof.extensions.cluster.elastic.measured import MeasuredPredictor
    from ddlprof.extensions.cluster.speeds import WithLayout
    from ddlprof.planning.layouts import require_sizes
    from ddlprof.recommender import Predictor
    from ddlprof.recommender.layout import parse_layout

    if layout:
        require_sizes(workload)
        return WithLayout(Predictor(workload, learned=learned), parse_layout(layout).layout)
    return Predictor(workload, learned=learned) if _of_gpus(workload) else MeasuredPredictor(workload)


def _predictors(lines: Sequence[Line], workloads: Sequence[Workload], learned: Learned | None) -> dict[str, Predicts]:
    """The predictor of each job; jobs of one workload with one layout share theirs, which learns from it once."""
    made: dict[tuple[int, str], Predicts] = {}
    found = {}
    for line, workload in zip(lines, workloads, strict=True):
        key = id(workload), line.layout
        if key not in made:
            made[key] = predictor_of(workload, learned, line.layout)
        found[line.name] = made[key]
    return found


def _cluster(gpus: int, per_machine: int) -> Cluster:
    from ddlprof.extensions.cluster.machines import Cluster, ClusterMachine

    sizes = [per_machine] * (gpus // per_machine) + [gpus % per_machine] * (gpus % per_machine > 0)
    return Cluster(tuple(ClusterMachine(index, 0, size) for index, size in enumerate(sizes)))


def job_of(line: Line, workload: Workload, predictor: Predicts, machine: Target, gpus: int) -> Job:
    """The job with its bounds on so many GPUs. Raises `UserError` where it cannot run there."""
    from ddlprof.extensions.cluster.elastic.measured import MeasuredPredictor
    from ddlprof.extensions.cluster.jobs import Job
    from ddlprof.recommender.layout import parse_layout

    asked = parse_layout(line.layout) if line.layout else None
    copy = asked.layout.model_ranks if asked else 1
    least = -(-line.min_gpus // copy) * copy
    most = min(line.max_gpus or gpus, gpus) // copy * copy
    if isinstance(predictor, MeasuredPredictor) and predictor.most_gpus == 1 and line.max_gpus is None:
        most = 1
    if least > most:
        can_be_had = min(line.max_gpus or gpus, gpus)
        raise UserError(f"{line.name}: needs {count(least, 'GPU')}, and {can_be_had} can be had")
    batch = line.batch or _measured_batch(workload.measurements) or workload.global_batch
    bounds = [each for each in (line.min_batch, line.max_batch, batch) if each is not None]
    if not bounds:
        raise UserError(f"{line.name}: no batch is known; give batch, or min_batch and max_batch")
    low, high = line.min_batch or min(bounds), line.max_batch or max(bounds)
    return Job(
        job_id=line.name,
        submit_s=line.submit_s,
        gpus=min(max((line.gpus or least) // copy * copy, least), most),
        samples=line.samples or 1.0,
        batch=min(max(batch or low, low), high),
        model=line.name,
        min_gpus=least,
        max_gpus=most,
        min_batch=low,
        max_batch=high,
        max_batch_per_gpu=asked.micro_batch or 1
        if asked
        else line.max_batch_per_gpu or _largest_batch(workload, machine),
        copy_gpus=copy,
    )


def _measured_batch(measurements: Sequence[Measurement]) -> int | None:
    """The samples of one optimizer update in the first measurement."""
    return next((m.batch_per_gpu * m.grad_accum * sum(m.placement) for m in measurements), None)


def _largest_batch(workload: Workload, machine: Target) -> int | None:
    """The most samples of one pass that fit a GPU's memory; None: not known. Raises `UserError` where not one fits."""
    from ddlprof.recommender.compute.memory import JobMemory
    from ddlprof.recommender.compute.memory_fit import usable_gib_of
    from ddlprof.recommender.target import default_catalog, machine_of

    gpu = machine_of(machine, default_catalog()).gpu if _of_gpus(workload) else None
    memory = JobMemory(workload)
    usable_gib = usable_gib_of(gpu) if gpu else None
    if gpu is None or usable_gib is None or memory.needed_gib(1, 1) is None:
        return None
    found = memory.largest_batch(usable_gib, 1)
    if not found:
        raise UserError(f"{workload.name}: not one sample fits the memory of a {gpu.gpu_model}")
    return found


def _words(gpus: int, per_machine: int, machine: Target) -> str:
    kind = machine.instance_type or machine.gpu_model or "as measured"
    machines = -(-gpus // per_machine)
    return f"{kind}, all in one machine" if machines == 1 else f"{machines} machines of {per_machine}, {kind}"


def _notes(own: Sequence[str], jobs: Sequence[Job]) -> list[str]:
    from ddlprof.base.units import listed

    notes = []
    if own:
        notes.append(
            f"{listed(list(own))}: predicted from their own measurements alone, for machines like those they ran on"
        )
    unknown = [job.job_id for job in jobs if job.max_batch_per_gpu is None and job.max_batch != job.min_batch]
    if unknown:
        notes.append(f"{listed(unknown)}: what fits the memory is not known; set max_batch_per_gpu")
    return notes
