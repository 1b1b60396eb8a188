"""Machines for a job: `answer` gives what `ddlprof recommend` shows, `predictions` what `ddlprof predict` does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddlprof.base.units import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlprof.instance_catalog import Gpu
    from ddlprof.planning.job import DescribedJob
    from ddlprof.planning.question import PlanQuestion
    from ddlprof.recommender import Estimate, Predictor, Settings, Target, Workload
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.report.plans.data import Answer
    from ddlprof.report.plans.prediction import Memory, Prediction


_MOST_NODES = 8
"""The most machines of a plan where the question names no number."""


def answer(
    job: DescribedJob, question: PlanQuestion, advance: Callable[[int, int], None] = lambda done, total: None
) -> Answer:
    """The plans, those of the job with its own settings where others are asked for, and what to measure next."""
    from datetime import date

    from ddlprof.recommender.plans.plan import STARTUP_S
    from ddlprof.recommender.plans.ranking import front_of
    from ddlprof.report.plans.data import Answer

    plans = _ranked(job, question, question.settings, advance)
    differences = question.settings.differences(job.workload)
    return Answer(
        job=job.workload.name,
        samples=question.samples,
        budget_s=question.budget_s,
        startup_s=STARTUP_S,
        plans=plans,
        front=front_of(plans),
        advice=_advice(job, plans[0], question.settings) if plans and plans[0].step_s else None,
        today=date.today(),
        differences=differences,
        as_measured=_as_measured(job, question) if differences else "",
    )


def _ranked(
    job: DescribedJob,
    question: PlanQuestion,
    settings: Settings | None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Plan]:
    from ddlprof.recommender.plans.ranking import recommend

    return recommend(
        job.workload,
        samples=question.samples,
        budget_s=question.budget_s,
        region=question.region,
        pricing=question.pricing,
        min_nodes=question.nodes or 1,
        max_nodes=question.nodes or question.max_nodes or _MOST_NODES,
        instance_types=question.instance_types,
        cloud=question.cloud,
        keep_global_batch=question.keep_global_batch,
        max_cost_usd=question.max_cost_usd,
        batch_per_gpu=question.batches_per_gpu,
        settings=settings,
        prices=question.prices,
        interruptions=question.interruptions,
        others=job.others,
        learned=job.learned,
        advance=advance,
    )


def _as_measured(job: DescribedJob, question: PlanQuestion) -> Plan | str:
    """The best plan with the job's own settings, or the reason why there is none."""
    from ddlprof.recommender import PredictionError

    try:
        plans = _ranked(job, question, None)
    except PredictionError as error:  # the job may be possible only with the settings asked for
        return str(error)
    if not plans:
        return "there is no candidate"
    return plans[0]


_MEASURED_STEPS, _LEAST_MEASURED_S = 100, 120.0
"""A run that is worth measuring has so many steps, and takes so long (s) with loading and warm-up."""


def _advice(job: DescribedJob, plan: Plan, settings: Settings) -> str | None:
    """The one further measurement that would narrow the interval of a plan most for each dollar."""
    from ddlprof.recommender.plans.plan import STARTUP_S, cost_usd
    from ddlprof.recommender.predictor import Predictor
    from ddlprof.recommender.target import Target

    seconds = STARTUP_S + max(_LEAST_MEASURED_S, _MEASURED_STEPS * (plan.step_s or 0.0))
    hourly_usd = (plan.usd_per_hour or 0.0) / plan.nodes

    def usd_of(placement: tuple[int, ...]) -> float:
        return cost_usd(hourly_usd, len(placement), seconds, plan.cloud)

    target = Target(plan.instance_type, plan.placement, plan.batch_per_gpu)
    predictor = Predictor(job.workload, others=job.others, learned=job.learned)
    asked = replace(target, **{**settings.given, "grad_accum": plan.grad_accum})
    best = predictor.next_measurement(asked, usd_of) if hourly_usd else predictor.next_measurement(asked)
    if best is None:
        return None
    small = best.batch_per_gpu < plan.batch_per_gpu and sum(best.placement) > 1
    why = " (a small one, behind which communication cannot hide)" if small else ""
    price = f", about {usd_of(best.placement):.2f} USD" if hourly_usd else ""
    return (
        f"one more run, on {_gpus(best.placement)} of {plan.instance_type} with batch {best.batch_per_gpu}{why},"
        f" would teach most for its price ({seconds / 60:.0f} minutes with start-up{price}):"
        f" the 80 % interval of a step of the first plan reaches {100 * best.share_now:.0f} % above its mean, then"
        f" {100 * best.share_then:.0f} %. Add it with: ddlprof recommend RUN NEW_RUN ..."
    )


def _gpus(placement: tuple[int, ...]) -> str:
    """`8 GPUs`, `2 x 8 GPUs`: those of a placement."""
    alike = len(placement) > 1 and len(set(placement)) == 1
    return f"{len(placement)} x {placement[0]} GPUs" if alike else count(sum(placement), "GPU")


def placement_on(used: tuple[int, ...], nodes: int | None) -> Callable[[str], tuple[int, ...]]:
    """The GPUs used on each machine of a type: all of them where so many nodes are asked for."""
    from ddlprof.recommender.target import default_catalog

    if nodes is None:
        return lambda name: used
    return lambda name: (default_catalog().instance(name).gpus or 1,) * nodes


def predictions(
    job: DescribedJob,
    batch: int | None,
    placement: Callable[[str], tuple[int, ...]],
    questions: list[tuple[tuple[str, str], Settings]],
    links: dict[str, Any] | None = None,
) -> list[Prediction]:
    """One prediction for each machine and settings. Raises PredictionError or CatalogError where there is not one.

    `links` are those of machines that are known by their GPU, fields of `Target`.
    """
    from ddlprof.recommender import PredictionError, Predictor, Target
    from ddlprof.recommender.model_flops import mfu
    from ddlprof.recommender.plans.candidates import describe_job
    from ddlprof.recommender.target import default_catalog, machine_of
    from ddlprof.report.plans.prediction import Prediction

    workload = job.workload
    predictor = Predictor(workload, others=job.others, learned=job.learned)
    described = describe_job(workload, (batch,) if batch else (), keep_global_batch=False)
    found: list[Prediction] = []
    problems: list[PredictionError] = []
    for (field, name), settings in questions:
        machine: dict[str, Any] = {field: name, **(links or {} if field == "gpu_model" else {})}
        as_measured = Target(
            placement=placement(name),
            batch_per_gpu=described.batches_per_gpu[0],
            grad_accum=described.grad_accum,
            host_launch_us=settings.host_launch_us,
            **machine,
        )
        target = replace(as_measured, **settings.given)
        differences = settings.differences(workload)
        try:
            estimate = predictor.predict(target)
        except PredictionError as error:
            problems.append(error)
            found.append(Prediction(target, None, None, differences, str(error)))
            continue
        before = _estimate(predictor, as_measured) if differences else None
        gpu = machine_of(target, default_catalog()).gpu
        found.append(
            Prediction(
                target,
                estimate,
                before,
                differences,
                memory=_memory(workload, settings, target, gpu),
                tokens_per_sample=workload.tokens_per_sample,
                mfu=mfu(workload, target, estimate, gpu, target.precision or described.precision),
            )
        )
    if len(problems) == len(found):
        raise problems[0]
    return found


def _memory(workload: Workload, settings: Settings, target: Target, gpu: Gpu | None) -> Memory | None:
    """The GPU memory that the step needs; None where the job's need or the GPU's memory is not known."""
    from ddlprof.recommender.compute.memory_fit import FITS, usable_gib_of, verdict_of
    from ddlprof.recommender.plans.candidates import describe_job
    from ddlprof.recommender.plans.memory import MemoryFit
    from ddlprof.recommender.target import default_catalog
    from ddlprof.report.plans.prediction import Memory

    sizes = (target.batch_per_gpu, sum(target.placement), target.grad_accum or 1)
    job = describe_job(workload, (target.batch_per_gpu,), False, settings)
    fitting = MemoryFit(workload, job, default_catalog())
    verdict = verdict_of(fitting.needed(*sizes), usable_gib_of(gpu) if gpu else None)
    if verdict is None:
        return None
    if verdict.word == FITS:
        return Memory(verdict)
    return Memory(verdict, fitting.largest_batch(verdict.usable_gib, *sizes[1:]), fitting.cures(verdict, *sizes))


def _estimate(predictor: Predictor, target: Target) -> Estimate | None:
    """The prediction, or None where it fails: the comparison is then left out."""
    from ddlprof.recommender import PredictionError

    try:
        return predictor.predict(target)
    except PredictionError:
        return None
