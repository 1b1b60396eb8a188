"""What the ranks of a job exchange for an update: gradients, and weights where a strategy shards them."""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.recommender.compute.adapters import adapter_types, adapters_of, target_shares
from ddlprof.recommender.compute.packing import packing_named
from ddlprof.recommender.compute.precisions import (
    BYTES,
    computed_type,
    in_terms_of,
    parameter_type,
    precision_named,
)
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.compute.what_if import trained
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.settings import measured_settings
from ddlprof.recommender.strategy import Strategy
from ddlprof.recommender.workload import Workload

_SCATTERED = 0.5
"""The bytes that reduce gradients to the rank that updates them, over those of an all-reduce."""


class Exchanged(NamedTuple):
    """Bytes, as those of an all-reduce, and the parameter tensors that they are of."""

    bytes: float
    again: float
    """Of the bytes, those that each further micro-batch exchanges as well: the parameters that a strategy gathers, and
    the gradients that DeepSpeed reduces."""
    tensors: float


class _Types(NamedTuple):
    """The bytes of an element that is reduced, and of one that is gathered, over those of a gradient as counted."""

    reduced: float
    gathered: float


def exchanged_by(
    workload: Workload,
    strategy: Strategy,
    changes: Changes,
    precision: str | None = None,
    reduced_in: str | None = None,
) -> Exchanged:
    """What an update exchanges in a precision; None: in that of the job. `reduced_in`: the type in which gradients are
    reduced, where that is known. Adapters (LoRA) leave little of the gradients,
    and all of the frozen weights that FSDP gathers; without the operators of the step they are not taken into account.
    Raises PredictionError where the bytes of the gradients are not known."""
    if workload.gradient_bytes is None:
        raise PredictionError(
            f"{workload.name}: gradient_bytes is not known, so nothing can be said of more than one GPU"
        )
    types = _types(workload, strategy, precision, reduced_in)
    reduced = (strategy.bytes_factor - strategy.gathered_factor) * types.reduced
    gathered = strategy.gathered_factor * types.gathered
    scattered = _SCATTERED * types.reduced if strategy.deepspeed else 0.0
    share, weights, tensors = 1.0, 1.0, workload.tensors
    rank, step = changes.qlora or changes.lora, workload.step
    if rank is not None and step is not None and step.has_forward:
        elements, _ = trained(step)
        adapters = adapters_of(step, rank, elements, target_shares(step, changes.lora_targets))
        asked = in_terms_of(step.precision, precision or step.precision)
        wider = BYTES[adapter_types(asked, changes.lora_precision).held] / BYTES[parameter_type(asked)]
        share, tensors = adapters.share * wider, adapters.tensors
        weights += share
        if changes.qlora is not None:
            size = BYTES[parameter_type(precision_named(step.precision))]
            weights -= adapters.packable / elements * (1.0 - packing_named(changes.qlora_format).held_bytes / size)
    once, again = (workload.gradient_bytes * (each * share + gathered * weights) for each in (reduced, scattered))
    return Exchanged(once, again, tensors)


def _types(workload: Workload, strategy: Strategy, precision: str | None, reduced_in: str | None) -> _Types:
    """Gradients have the type of their parameters: fp32 under autocast and in fp8 around it, 16 bit where parameters
    are. FSDP's mixed precision gathers parameters in the type that computes, and reduces in that type too, unless it
    names another (`torch.distributed.fsdp.MixedPrecision`, `MixedPrecisionPolicy`)."""
    counted = measured_settings(workload).precision
    try:
        before = BYTES[parameter_type(precision_named(counted or "fp32"))]
        asked = in_terms_of(counted or "fp32", precision or counted or "fp32")
    except (KeyError, PredictionError):  # a run's own word
        return _Types(1.0, 1.0)
    held = BYTES[parameter_type(asked)]
    computed = BYTES[computed_type(asked)] if strategy.gathered_factor else held
    reduced = BYTES.get(reduced_in or "", computed)
    return _Types(reduced / before, computed / before)
