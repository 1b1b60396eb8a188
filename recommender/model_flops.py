"""The FLOPs that the MFU counts, of a job as it is asked for."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.model.operators import StepOperators, model_flops
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.compute.what_if import as_asked
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


def _asked(step: StepOperators, changes: Changes) -> StepOperators:
    return as_asked(step, batch=step.batch, **vars(changes))


def _flops(step: StepOperators) -> float:
    return sum(model_flops(each) * each.count for each in step.operators)
