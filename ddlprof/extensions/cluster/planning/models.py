"""From a file of models to the jobs of a trace that may run on other GPUs and batches than they asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from ddlprof.extensions.cluster.jobs import Job
    from ddlprof.extensions.cluster.machines import Cluster
    from ddlprof.extensions.cluster.speeds import Speeds


def with_known_models(
    path: Path, jobs: Sequence[Job], cluster: Cluster, otherwise: Speeds, learned_file: Path | None = None
) -> tuple[list[Job], Speeds, str]:
    """The jobs, the speeds of them all, and a sentence on what was done.

    `path` is a file as that of `ddlprof elastic`, with a model of the trace on each line. A job keeps its duration on
    the GPUs that it asks for: its samples follow from that and the predicted speed. Raises `DdlprofError`.
    """
    from ddlprof.extensions.cluster.elastic.jobs_file import read_jobs
    from ddlprof.extensions.cluster.planning.elastic import job_of, machine_of_jobs, predictor_of, workload_of
    from ddlprof.extensions.cluster.speeds import PredictedSpeeds
    from ddlprof.planning.learned import learned_for

    lines = read_jobs(path)
    if not {line.name for line in lines} & {job.model for job in jobs}:
        raise UserError(f"--models {path}: no job of the trace has a model of this file, such as {lines[0].name}")
    learned = learned_for(learned_file)
    workloads = [workload_of(line, path.parent) for line in lines]
    gpu_model = cluster.gpu_models[0]
    machine = machine_of_jobs(lines, workloads, None, gpu_model)
    predictors = {
        line.name: predictor_of(workload, learned, line.layout) for line, workload in zip(lines, workloads, strict=True)
    }
    limits = {
        line.name: job_of(line, workload, predictors[line.name], machine, cluster.most_of_one_model)
        for line, workload in zip(lines, workloads, strict=True)
    }
    speeds = PredictedSpeeds(predictors, machine, otherwise)
    found = [
        _elastic(job, limits[job.model], cluster, speeds)
        if job.model in limits and job.model is not None and job.gpus % limits[job.model].copy_gpus == 0
        else job
        for job in jobs
    ]
    known = sum(job.max_gpus is not None for job in found)
    sentence = (
        f"{known:,} of {len(found):,} jobs are of models whose speed is known: policies may give them other GPUs and"
        " batches; on the GPUs that they ask for they take the time of the trace"
    )
    return found, speeds, f"{sentence}; {learned.sentence}" if learned else sentence


def _elastic(job: Job, limits: Job, cluster: Cluster, speeds: Speeds) -> Job:
    """The job with the bounds of its model, widened to the GPUs that it asks for."""
    least, most = limits.min_batch or limits.batch, limits.max_batch or limits.batch
    known = replace(
        job,
        batch=min(max(job.batch, least, job.gpus // limits.copy_gpus), most),
        min_gpus=min(limits.min_gpus, job.gpus),
        max_gpus=max(limits.most_gpus, job.gpus),
        min_batch=least,
        max_batch=most,
        max_batch_per_gpu=limits.max_batch_per_gpu,
        copy_gpus=limits.copy_gpus,
    )
    step_s = speeds.step(known, cluster.packed(known.gpus, cluster.gpu_models[0]), known.batch).step_s
    return replace(known, step_s=step_s, samples=(job.ideal_s or 0.0) / step_s * known.batch)
