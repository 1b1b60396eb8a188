"""What the ranks of a job exchange for an update: gradients, and weights where a strategy shards them."""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.recommender.compute.adapters import FOUR_BIT_BYTES, adapters_of
from ddlprof.recommender.compute.precisions import BYTES, parameter_type, precision_named
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.compute.what_if import trained
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.strategy import Strategy
from ddlprof.recommender.workload import Workload


class Exchanged(NamedTuple):
    """Bytes, as those of an all-reduce, and the parameter tensors that they are of."""

    bytes: float
    tensors: float


def exchanged_by(workload: Workload, strategy: Strategy, changes: Changes) -> Exchanged:
    """What an update exchanges. Adapters (LoRA) leave little of the gradients, and all of the frozen weights that FSDP
    gathers; without the operators of the step they are not taken into account. Raises PredictionError where the bytes
    of the gradients are not known."""
    if workload.gradient_bytes is None:
        raise PredictionError(
            f"{workload.name}: gradient_bytes is not known, so nothing can be said of more than one GPU"
        )
    rank, step = changes.qlora or changes.lora, workload.step
    if rank is None or step is None or not step.has_forward:
        return Exchanged(workload.gradient_bytes * strategy.bytes_factor, workload.tensors)
    elements, _ = trained(step)
    adapters = adapters_of(step, rank, elements)
    weights = 1.0 + adapters.share
    if changes.qlora is not None:
        size = BYTES[parameter_type(precision_named(step.precision))]
        weights -= adapters.covered / elements * (1.0 - FOUR_BIT_BYTES / size)
    gradients = (strategy.bytes_factor - strategy.gathered_factor) * adapters.share
    factor = gradients + strategy.gathered_factor * weights
    return Exchanged(workload.gradient_bytes * factor, adapters.tensors)
