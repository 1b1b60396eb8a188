"""`ddlprof predict`: the step of a job on one target, or on several side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli import settings as asked
from ddlprof.cli.described_job import JOB_HELP
from ddlprof.cli.output import Out, format_option, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlprof.cli.described_job import DescribedJob
    from ddlprof.report.plans.prediction import Memory, Prediction
    from recommender import Estimate, Predictor, Settings, Target, Workload

FORMATS = ("table", "json")
MOST_TARGETS = 1000
MOST_NODES = 10_000


def predict(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    instance: Annotated[
        list[str] | None, typer.Option(metavar="TYPE,...", help="Instance types of the catalogue, side by side.")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="MODEL,...", help="GPUs outside a cloud, such as 'RTX 3090', too.")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="GPUs used on each machine: 4,4 means two machines with four each [1]."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=MOST_NODES, help="In place of --placement: all GPUs of N machines."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="B", min=1, help="Samples per GPU and forward pass [as in RUN].")
    ] = None,
    precision: asked.Precisions = None,
    strategy: asked.Strategy = None,
    optimizer: asked.Optimizer = None,
    grad_accum: asked.GradAccum = None,
    checkpointing: asked.Checkpointing = None,
    compiled: asked.Compiled = None,
    other_job: asked.OtherJobs = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:
    """Predict the step time of a job on one target, class by class, with an 80 % interval, or on several side by side.

    What is asked for in place of the run's own settings is shown beside the step with those.
    """
    from ddlprof.cli.described_job import load_job, one_line, whole_numbers, words
    from ddlprof.report.plans import prediction, side_by_side

    places = wanted(out, format, FORMATS)
    if placement and nodes:
        raise UserError("give --placement or --nodes, not both")
    if nodes and gpu:
        raise UserError("--nodes takes all GPUs of an --instance: with --gpu, give --placement")
    used = whole_numbers(placement or "1", "--placement")
    machines = [("instance_type", name) for name in words(",".join(instance or []))]
    machines += [("gpu_model", name) for name in words(",".join(gpu or []))]
    precisions: list[str | None] = [*words(precision or "")]
    settings = [
        asked.settings_of(name, strategy, optimizer, grad_accum, checkpointing, compiled)
        for name in precisions or [None]
    ]
    questions = [(machine, each) for machine in dict.fromkeys(machines) for each in dict.fromkeys(settings)]
    if not 0 < len(questions) <= MOST_TARGETS:
        raise UserError(f"name 1 to {MOST_TARGETS} targets, by --instance TYPE, or --gpu MODEL outside of a cloud")
    job = load_job(run, (batch,) if batch else (), other_job or ())
    with one_line():
        found = _answers(job, batch, _placement(used, nodes), questions)
    report = prediction if len(found) == 1 else side_by_side
    renderers = {"table": report.render, "json": report.as_json}
    places.write({name: partial(render, job.workload.name) for name, render in renderers.items()}, found)


def _placement(used: tuple[int, ...], nodes: int | None) -> Callable[[str], tuple[int, ...]]:
    """The GPUs used on each machine of a type: all of them where so many nodes are asked for."""
    from recommender.target import default_catalog

    if nodes is None:
        return lambda name: used
    return lambda name: (default_catalog().instance(name).gpus or 1,) * nodes


def _answers(
    job: DescribedJob,
    batch: int | None,
    placement: Callable[[str], tuple[int, ...]],
    questions: list[tuple[tuple[str, str], Settings]],
) -> list[Prediction]:
    """One prediction for each machine and settings. Raises PredictionError or CatalogError where there is not one."""
    from ddlprof.report.plans.prediction import Prediction
    from recommender import PredictionError, Predictor, Target
    from recommender.plans.candidates import describe_job

    workload = job.workload
    predictor = Predictor(workload, others=job.others)
    described = describe_job(workload, (batch,) if batch else (), keep_global_batch=False)
    found: list[Prediction] = []
    problems: list[PredictionError] = []
    for (field, name), settings in questions:
        here = {"instance_type": None, "gpu_model": None, field: name}
        as_measured = Target(
            here["instance_type"], placement(name), described.batches_per_gpu[0], grad_accum=described.grad_accum,
            gpu_model=here["gpu_model"],
        )  # fmt: skip
        target = replace(as_measured, **settings.given)
        differences = settings.differences(workload)
        try:
            estimate = predictor.predict(target)
        except PredictionError as error:
            problems.append(error)
            found.append(Prediction(target, None, None, differences, str(error)))
            continue
        before = _estimate(predictor, as_measured) if differences else None
        found.append(
            Prediction(
                target,
                estimate,
                before,
                differences,
                memory=_memory(workload, target),
                tokens_per_sample=workload.tokens_per_sample,
                mfu=_mfu(workload, target, estimate),
            )
        )
    if len(problems) == len(found):
        raise problems[0]
    return found


def _mfu(workload: Workload, target: Target, estimate: Estimate) -> float | None:
    """The FLOPs of the model over those that the GPUs could do in the step, by the data sheet."""
    from recommender.compute.gpu_speed import peak_tflops, precision_class
    from recommender.target import default_catalog, machine_of

    gpu = machine_of(target, default_catalog()).gpu
    if gpu is None or workload.flops_per_sample is None:
        return None
    measured = next((each.precision for each in workload.measurements), None)
    traced = workload.step.precision if workload.step else None
    peak = peak_tflops(gpu, precision_class(target.precision or measured or traced or "fp32", gpu))
    if peak is None:
        return None
    samples = target.batch_per_gpu * (target.grad_accum or 1)
    return workload.flops_per_sample * samples / (estimate.step_s * peak * 1e12)


def _memory(workload: Workload, target: Target) -> Memory | None:
    """What the step needs of a GPU's memory; None: not known of the job or the GPU."""
    from ddlprof.report.plans.prediction import Memory
    from recommender.compute.memory import JobMemory
    from recommender.plans.fitting import USABLE_MEMORY_SHARE
    from recommender.target import default_catalog, machine_of

    gpu, gpus = machine_of(target, default_catalog()).gpu, sum(target.placement)
    of_job = JobMemory(
        workload, precision=target.precision, strategy=target.strategy, optimizer=target.optimizer,
        checkpointing=target.checkpointing, compiled=target.compiled,
    )  # fmt: skip
    needed_gib = of_job.needed_gib(target.batch_per_gpu, gpus, target.grad_accum or 1)
    if gpu is None or gpu.memory_gib is None or needed_gib is None:
        return None
    usable_gib = USABLE_MEMORY_SHARE * gpu.memory_gib
    memory = Memory(needed_gib, usable_gib)
    if memory.fits:
        return memory
    return replace(memory, largest_batch=of_job.largest_batch(usable_gib, gpus, target.grad_accum or 1))


def _estimate(predictor: Predictor, target: Target) -> Estimate | None:
    """None where it cannot be predicted: the comparison is then left out."""
    from recommender import PredictionError

    try:
        return predictor.predict(target)
    except PredictionError:
        return None
