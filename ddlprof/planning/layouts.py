"""One layout of a transformer over many GPUs, and its neighbours: what `ddlprof predict --layout` answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import DdlprofError, UserError

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Layout, Predictor, Target, Workload
    from ddlprof.recommender.architecture import Transformer
    from ddlprof.recommender.layout import AskedLayout
    from ddlprof.report.plans.layout_prediction import LayoutPrediction

USUAL_PRECISION = "bf16"
USUAL_GPUS = 8
"""The GPUs of a machine that is known by its GPU alone."""
_ACCUMULATED = 4
"""The micro-batches for each stage of a pipeline where no number was asked for: its bubble is then a fifth of a step or
less."""
_MOST_MICRO_BATCH, _MOST_CONTEXT, _MOST_VIRTUAL = 16, 64, 8
VARIED = ("tensor", "pipeline", "virtual", "context", "expert", "micro-batch", "shard", "recompute")
"""The dimensions that can be varied."""


@dataclass(frozen=True)
class LayoutQuestion:
    """A layout with the GPUs and the batch that were named. None: not named."""

    asked: AskedLayout
    placement: tuple[int, ...] | None = None
    nodes: int | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    global_batch: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    interconnect: str | None = None
    network_gbps: float | None = None


def require_sizes(workload: Workload) -> Transformer:
    """The sizes of the model. Raises UserError where they are not known."""
    if workload.transformer is None:
        raise UserError(
            f"{workload.name}: a layout needs the sizes of a transformer: take a file of ddlprof features transformer,"
            " of a config.json or of transformers:NAME"
        )
    return workload.transformer


def predict_layouts(
    job: DescribedJob, machines: Sequence[tuple[str, str]], question: LayoutQuestion, vary: str | None = None
) -> list[LayoutPrediction]:
    """The step of the layout on each machine; with `vary`, that of each value of this dimension.

    GPUs and global batch stay where a dimension is varied; data ranks and accumulation follow. `machines` are pairs of
    a field of `Target` (instance_type, gpu_model) and its value. Raises UserError or PredictionError where the layout
    asked for cannot be; a varied one that cannot be is part of the answer, with the reason.
    """
    from ddlprof.recommender import Predictor
    from ddlprof.recommender.layouts.data_parallel import usual_precision

    model = require_sizes(job.workload)
    precision = usual_precision(job.workload) or USUAL_PRECISION
    predictor = Predictor(job.workload, others=job.others, learned=job.learned)
    found: list[LayoutPrediction] = []
    problems: list[DdlprofError] = []
    for machine in machines:
        target, assumed = target_of(machine, question, model, job.workload.global_batch, precision)
        for value, each in _varied(target, vary, model) if vary else [("", target)]:
            step, problem = _step(predictor, each, target, model, value, assumed)
            found.append(step)
            problems += [problem] if problem else []
    if len(problems) == len(found):
        raise problems[0]
    return found


def _step(
    predictor: Predictor, target: Target, base: Target, model: Transformer, value: str, assumed: tuple[str, ...]
) -> tuple[LayoutPrediction, DdlprofError | None]:
    """The step of a target with the global batch of the base, and why there is none."""
    from ddlprof.recommender import PredictionError
    from ddlprof.recommender.compute.memory_fit import usable_gib_of
    from ddlprof.recommender.target import default_catalog, machine_of
    from ddlprof.report.plans.layout_prediction import LayoutPrediction

    assert target.layout is not None
    gpu = machine_of(target, default_catalog()).gpu
    usable_gib = usable_gib_of(gpu) if gpu else None
    try:
        if problem := target.layout.problem(model, sum(target.placement)):
            raise PredictionError(f"layout {target.layout.text()}: {problem}")
        batched = _batched(target, base)
        estimate = predictor.predict(batched)
    except (PredictionError, UserError) as error:
        return LayoutPrediction(target, None, model.seq, value, str(error)), error
    return LayoutPrediction(batched, estimate, model.seq, value, usable_gib=usable_gib, assumed=assumed), None


def target_of(
    machine: tuple[str, str],
    question: LayoutQuestion,
    model: Transformer,
    usual_batch: int | None = None,
    usual_precision: str = USUAL_PRECISION,
) -> tuple[Target, tuple[str, ...]]:
    """The target that a question names on a machine, and what was assumed.

    `usual_batch` is the global batch of the job, and `usual_precision` its precision, where none is named. Raises
    UserError where the question contradicts itself.
    """
    from ddlprof.recommender import Target

    layout = question.asked.layout
    field, name = machine
    placement = _placement(field, name, question)
    data = layout.data_ranks(sum(placement))
    if question.asked.data not in (None, data):
        raise UserError(f"dp{question.asked.data} of the layout is not what is left of {sum(placement)} GPUs: dp{data}")
    micro_batch = _one_of("mb", question.asked.micro_batch, "--batch", question.micro_batch) or 1
    accumulated = _one_of("ga", question.asked.grad_accum, "--grad-accum", question.grad_accum)
    assumed: tuple[str, ...] = ()
    if accumulated is None:
        batch = question.global_batch or usual_batch
        accumulated, assumed = _accumulated(layout, batch, micro_batch, data)
    elif question.global_batch not in (None, accumulated * micro_batch * data):
        raise UserError(
            f"--global-batch {question.global_batch} is not {accumulated} micro-batches of {micro_batch} on {data} data"
            f" ranks: leave one out"
        )
    described: dict[str, Any] = {field: name}
    target = Target(
        placement=placement,
        batch_per_gpu=micro_batch,
        grad_accum=accumulated,
        precision=question.precision or usual_precision,
        optimizer=question.optimizer,
        interconnect=question.interconnect if field == "gpu_model" else None,
        network_gbps=question.network_gbps if field == "gpu_model" else None,
        layout=layout,
        **described,
    )
    return target, assumed


def _one_of(part: str, in_layout: int | None, option: str, given: int | None) -> int | None:
    if in_layout and given and in_layout != given:
        raise UserError(f"{part}{in_layout} of the layout contradicts {option} {given}: leave one out")
    return in_layout or given


def _accumulated(layout: Layout, batch: int | None, micro_batch: int, data: int) -> tuple[int, tuple[str, ...]]:
    """The micro-batches of a step in each data rank, and what was assumed."""
    if batch is None:
        if layout.pipeline == 1:
            return 1, ()
        return _ACCUMULATED * layout.pipeline, (
            f"batch: none was named (ga or --global-batch), so {_ACCUMULATED} micro-batches for each stage",
        )
    found, rest = divmod(batch, micro_batch * data)
    if rest or not found:
        raise UserError(
            f"a global batch of {batch} sequences is no multiple of {micro_batch} of a micro-batch x {data} data ranks"
        )
    return found, ()


def _placement(field: str, name: str, question: LayoutQuestion) -> tuple[int, ...]:
    """The GPUs used on each machine: as named, or as many full machines as the layout's ranks need."""
    from ddlprof.recommender.target import default_catalog

    if question.placement:
        return question.placement
    usual = (default_catalog().instance(name).gpus or 1) if field == "instance_type" else USUAL_GPUS
    if question.nodes:
        return (usual,) * question.nodes
    ranks = question.asked.layout.model_ranks * (question.asked.data or 1)
    if ranks <= usual:
        return (ranks,)
    nodes, rest = divmod(ranks, usual)
    if rest:
        raise UserError(f"{ranks} GPUs are no whole number of machines with {usual}: give --placement")
    return (usual,) * nodes


def _batched(target: Target, before: Target) -> Target:
    """The target with the accumulation that keeps the global batch of `before`."""
    assert target.layout is not None
    assert before.layout is not None
    gpus = sum(target.placement)
    batch = before.batch_per_gpu * (before.grad_accum or 1) * before.layout.data_ranks(gpus)
    accumulated, _ = _accumulated(target.layout, batch, target.batch_per_gpu, target.layout.data_ranks(gpus))
    return replace(target, grad_accum=accumulated)


def _varied(target: Target, dimension: str, model: Transformer) -> Iterator[tuple[str, Target]]:
    """Each value of the dimension, and the target with it; powers of two where it is a number."""
    from ddlprof.recommender.layout import RECOMPUTES, SHARDS

    layout = target.layout
    assert layout is not None
    if dimension == "micro-batch":
        for size in _powers(_MOST_MICRO_BATCH, target.batch_per_gpu):
            yield str(size), replace(target, batch_per_gpu=size)
        return
    values: dict[str, Sequence[Any]] = {
        "tensor": _powers(max(target.placement), layout.tensor),
        "pipeline": _powers(model.layers, layout.pipeline),
        "virtual": _powers(min(_MOST_VIRTUAL, model.layers // layout.pipeline), layout.virtual),
        "context": _powers(_MOST_CONTEXT, layout.context),
        "expert": _powers(model.experts or 1, layout.expert),
        "shard": SHARDS,
        "recompute": RECOMPUTES,
    }
    if dimension not in values:
        raise UserError(f"--vary takes one of {', '.join(VARIED)}: not {dimension!r}")
    gpus = sum(target.placement)
    for value in values[dimension]:
        changes: dict[str, Any] = {dimension: value}
        if dimension == "pipeline" and value == 1:
            changes["virtual"] = 1
        changed = replace(layout, **changes)
        if changed.model_ranks <= gpus:
            yield str(value), replace(target, layout=changed)


def _powers(most: int, asked: int) -> list[int]:
    """The powers of two up to `most`, and the value that was asked for."""
    from ddlprof.recommender.search.rules import powers

    return sorted({asked, *powers(max(most, 1))})
