"""The operators of a step of this run, put together of what the training thread has read."""

from __future__ import annotations

from ddlprof.collect.facts.model_inspector import ModelInspector
from ddlprof.model.manifest import Manifest
from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.operators.graph_operators import Step, step_of

_TOO_LITTLE = (
    "too much of the model is in no autograd graph (frozen parts, compiled code or autograd functions of its own):"
    " forward and backward are not told"
)
_NO_UPDATE = "the update: no optimizer of torch's kind was seen"


def step_record(probe: ModelInspector, manifest: Manifest) -> StepOperators | None:
    """The operators of a step; None where nothing was read or the batch is not known.

    Without those of forward and backward where the count of FLOPs is not known either: they would be too few.
    """
    batch, precision = manifest.training.batch_per_rank, manifest.training.precision
    found = step_of(probe.graphs, batch, probe.owned, _microbatches(probe, manifest)) if batch else None
    if batch is None or found is None or precision is None:
        return None
    updates = sorted(probe.updates.values(), key=lambda update: update.elements, reverse=True)
    of_update = [operator for update in updates for operator in update.operators()]
    whole = probe.counted is not None
    unseen = [*found.unseen, *([] if whole else [_TOO_LITTLE]), *([] if updates else [_NO_UPDATE])]
    operators: list[Operator] = [*(found.operators if whole else ()), *of_update]
    return StepOperators(
        batch=batch,
        precision=precision,
        operators=tuple(operators),
        optimizer=updates[0].full_name if updates else None,
        checkpointing=found.checkpointing,
        compiled=found.compiled or bool(manifest.model.compiled),
        memory=_memory(found, probe),
        unseen=tuple(unseen),
        layers=probe.layers,
    )


def _microbatches(probe: ModelInspector, manifest: Manifest) -> float | None:
    """How many micro-batches the graphs are of that were read: of a step of so many, all, or those there was time for.

    Several backwards through one batch, as those of a GAN, are one.
    """
    of_step = manifest.training.micro_batches
    return of_step * probe.graphs.microbatches / probe.backwards if of_step and probe.backwards else None


def _memory(found: Step, probe: ModelInspector) -> StepMemory:
    sizes = probe.sizes
    return StepMemory(
        parameter_bytes=sizes.all if sizes else None,
        trained_bytes=sizes.trained if sizes else None,
        saved_bytes=found.saved_bytes,
        saved_fixed_bytes=found.saved_fixed_bytes,
        saved_cast_bytes=found.saved_cast_bytes,
        temporary_bytes=found.temporary_bytes,
        points=found.points,
        largest_tensor_bytes=sizes.largest if sizes else None,
        input_bytes=probe.input_bytes,
    )
