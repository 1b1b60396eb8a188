"""A layout that divides nothing but the batch is a strategy of data parallelism, and predicted as one: a job has one
answer whether it is asked for with a layout or without."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.instance_catalog import Gpu
from ddlprof.model.operators import Checkpointing
from ddlprof.recommender.compute.memory import JobMemory
from ddlprof.recommender.compute.memory_fit import figures_of, usable_gib_of, verdict_of
from ddlprof.recommender.compute.precisions import BYTES, in_terms_of, parameter_type
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.estimate import Estimate
from ddlprof.recommender.layout import DIMENSIONS
from ddlprof.recommender.layouts.coefficients import FittedLayouts, LayoutCoefficients
from ddlprof.recommender.model_flops import mfu
from ddlprof.recommender.settings import measured_settings
from ddlprof.recommender.target import Target
from ddlprof.recommender.workload import Workload

PRECISIONS = {"bf16": "bf16", "amp-bf16": "bf16", "fp16": "fp16", "amp-fp16": "fp16", "fp8": "fp8"}
"""Those in which layouts are predicted, and the type of products in them."""
_STRATEGIES = {"none": "ddp", "zero1": "zero", "zero2": "zero2", "zero3": "fsdp"}
_CHECKPOINTING: dict[str, Checkpointing] = {"none": False, "full": True, "selective": "selective"}


def has_operators(workload: Workload) -> bool:
    """Whether the job is predicted from its operators: they are known, and no software is named that has others."""
    return workload.software is None and workload.step is not None and workload.step.has_forward


def coefficients_of(workload: Workload, precision: str, fitted: FittedLayouts) -> LayoutCoefficients:
    """The coefficients for layouts of a job in a precision. A job that was counted in 16 bit keeps and exchanges the
    types that its code has in that precision; others those of their software."""
    experts = bool(workload.transformer and workload.transformer.experts)
    found = fitted.of(workload.software, "fp8" if precision.startswith("fp8") else precision, experts)
    if workload.step is None or not has_operators(workload) or usual_precision(workload) is None:
        return found
    held = parameter_type(in_terms_of(workload.step.precision, precision))
    return replace(found, parameter_bytes=float(BYTES[held]))


def usual_precision(workload: Workload) -> str | None:
    """The precision in which the job was counted or measured, if layouts are predicted in it."""
    counted = measured_settings(workload).precision
    return counted if counted in PRECISIONS else None


def as_strategy(target: Target) -> Target | None:
    """The target with the strategy and the checkpointing of its layout; None: its layout divides the model, or there is
    none."""
    layout = target.layout
    if layout is None or layout.model_ranks > 1 or layout.expert > 1 or layout.shard not in _STRATEGIES:
        return None
    return replace(
        target, layout=None, strategy=_STRATEGIES[layout.shard], checkpointing=_CHECKPOINTING[layout.recompute]
    )


def with_figures_of_layouts(
    estimate: Estimate, workload: Workload, target: Target, gpu: Gpu | None, precision: str
) -> Estimate:
    """The estimate of a target with what estimates of layouts tell besides: memory, tokens, MFU, dimensions."""
    gpus, passes = sum(target.placement), target.grad_accum or 1
    job = JobMemory(workload, precision=precision, strategy=target.strategy, changes=Changes.of(target))
    needed = job.needed(target.batch_per_gpu, gpus, passes)
    fits = verdict_of(needed, usable_gib_of(gpu) if gpu else None)
    tokens = workload.tokens_per_sample
    sent_s = estimate.times.interconnect_s + estimate.times.network_s
    return replace(
        estimate,
        memory_gib=needed.gib if needed else None,
        **figures_of(fits),
        tokens_per_s=tokens and tokens * gpus * target.batch_per_gpu * passes / estimate.step_s,
        mfu=mfu(workload, target, estimate, gpu, precision),
        dimensions={**dict.fromkeys(DIMENSIONS, 0.0), "data": sent_s},
    )
