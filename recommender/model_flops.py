"""The FLOPs that the MFU counts, of a job as it is asked for."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.instance_catalog import Gpu
from ddlprof.model.operators import StepOperators, model_flops
from ddlprof.recommender.compute.gpu_peaks import peak_tflops, precision_class
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.compute.what_if import as_asked
from ddlprof.recommender.estimate import Estimate
from ddlprof.recommender.target import Target
from ddlprof.recommender.workload import Workload


def model_flops_per_sample(workload: Workload, changes: Changes) -> float | None:
    """`Workload.flops_per_sample`, and with adapters (LoRA) those of training them alone: no gradients of frozen
    weights, and the adapters' own products. None: not known. Raises `PredictionError` as `as_asked` does."""
    known, step = workload.flops_per_sample, workload.step
    if known is None or step is None or not step.has_forward or (changes.lora or changes.qlora) is None:
        return known
    plain = Changes(checkpointing=False)
    trained = replace(changes, checkpointing=False, optimizer=None, compiled=None, channels_last=None)
    difference = _flops(_asked(step, trained)) - _flops(_asked(step, plain))
    return known + difference / step.batch


def mfu(workload: Workload, target: Target, estimate: Estimate, gpu: Gpu | None, precision: str) -> float | None:
    """The FLOPs of the model as asked as a share of those that the GPUs could do in the step by their data sheet; None:
    not known."""
    flops = model_flops_per_sample(workload, Changes.of(target))
    if gpu is None or flops is None:
        return None
    peak = peak_tflops(gpu, precision_class(precision, gpu))
    if peak is None:
        return None
    samples = target.batch_per_gpu * (target.grad_accum or 1)
    return flops * samples / (estimate.step_s * peak * 1e12)


def _asked(step: StepOperators, changes: Changes) -> StepOperators:
    return as_asked(step, batch=step.batch, **vars(changes))


def _flops(step: StepOperators) -> float:
    return sum(model_flops(each) * each.count for each in step.operators)
