"""The operators of a step at another batch or precision, with another optimizer, adapters, checkpointed or compiled.

Pure functions of operators, independent of any GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ddlprof.model.operators import Checkpointing, Operator, StepMemory, StepOperators
from ddlprof.recommender.compute.adapters import target_shares, with_adapters
from ddlprof.recommender.compute.deepspeed import with_deepspeed
from ddlprof.recommender.compute.optimizers import optimizer_named
from ddlprof.recommender.compute.packing import packing_named
from ddlprof.recommender.compute.precisions import BYTES, in_precision, parameter_type, precision_named, times
from ddlprof.recommender.compute.recomputation import with_checkpointing
from ddlprof.recommender.errors import PredictionError

_ELEMENTS_PER_TENSOR = 250_000
"""The assumed elements of a parameter tensor where no update was counted; common models have 0.03 to 1.2 million."""

_ITERATIONS = 5
"""Of Newton and Schulz in an update of Muon."""

FUSED_BYTES = {"elementwise": 0.35, "copy": 0.3, "reduction": 0.6, "normalization": 0.7, "softmax": 0.7, "other": 0.7}
"""The factor of torch.compile on the bytes of an operator, by kind, where it was not counted; 1 for kinds not listed.
Chains of two or three elementwise operators become one kernel that reads its inputs and writes its result once."""
FUSED_LAUNCHES = {
    "elementwise": 0.3, "copy": 0.2, "reduction": 0.5, "normalization": 0.8, "softmax": 0.8, "other": 0.7,
}  # fmt: skip
"""The factor of torch.compile on the launches of an operator, likewise."""


def as_asked(
    step: StepOperators,
    *,
    batch: int,
    precision: str | None = None,
    optimizer: str | None = None,
    checkpointing: Checkpointing | None = None,
    compiled: bool | None = None,
    channels_last: bool | None = None,
    lora: int | None = None,
    qlora: int | None = None,
    deepspeed: int | None = None,
    lora_targets: str | None = None,
    lora_precision: str | None = None,
    qlora_format: str | None = None,
    lora_dropout: bool | None = None,
) -> StepOperators:
    """The step at `batch` samples of a micro-batch, with the changes that are not None.

    `precision`: one of `precisions.PRECISIONS`. `optimizer`: one of `OPTIMIZER_UPDATES`. Products, convolutions and
    attention keep their FLOPs in every precision. `checkpointing` recomputes all blocks in backward, or (selective) all
    of them except their products. `lora`, `qlora`: the rank of adapters that are trained in place of the weights;
    `lora_targets`: the layers that have them, such as `q_proj,v_proj` or all-linear, and `lora_precision`: their own
    precision (None: both as PEFT has it); `qlora_format`: a name of `packing.FORMATS`;
    `lora_dropout`: whether there is one before the adapters.
    `deepspeed`: with what this stage of DeepSpeed's ZeRO adds.
    Without changes the same object is returned. Raises `PredictionError`, one line, for an unknown name and for changes
    that need facts which the step lacks.
    """
    rank = qlora or lora
    shares = target_shares(step, lora_targets) if rank is not None else {}  # names are those of the step as counted
    if precision is not None:
        step = in_precision(step, precision)
    step = at_batch(step, batch)
    if optimizer is not None:
        step = _with_optimizer(step, optimizer)
    frozen = 0.0
    if rank is not None:
        _, frozen = trained(step)
        as_counted = step.compiled
        step = with_adapters(
            _eager(step) if as_counted else step,
            rank,
            packing=packing_named(qlora_format) if qlora is not None else None,
            trained=trained(step),
            shares=shares,
            precision=lora_precision,
            dropout=lora_dropout,
        )
        step = _compiled(step) if as_counted else step
    if deepspeed:
        step = with_deepspeed(step, trained(step), deepspeed, frozen)
    if checkpointing is not None:
        step = with_checkpointing(step, checkpointing)
    if compiled is not None and compiled != step.compiled:
        step = _compiled(step) if compiled else _eager(step)
    if channels_last is not None and channels_last != step.channels_last:
        step = replace(step, channels_last=channels_last)  # the same operators and sizes, in less time
    return step


def at_batch(step: StepOperators, batch: int) -> StepOperators:
    """The step at another batch: what grows with it is scaled in proportion.

    Raises `PredictionError` for a batch below one.
    """
    if batch < 1:
        raise PredictionError(f"a micro-batch of {batch} samples cannot be; give at least 1")
    if batch == step.batch:
        return step
    operators = tuple(_grown(operator, batch, step.batch) for operator in step.operators)
    memory, plain = (each and memory_at(each, batch / step.batch) for each in (step.memory, step.plain_memory))
    return replace(step, batch=batch, operators=operators, memory=memory, plain_memory=plain, others=())


def _grown(operator: Operator, batch: int, before: int) -> Operator:
    if operator.grows is None:
        return operator
    factor = batch / before
    fused, unfused = operator.fused_bytes, operator.unfused_bytes
    shape = list(operator.shape)
    shape[operator.grows] = max(1, round(shape[operator.grows] * batch / before))
    return replace(
        operator,
        shape=tuple(shape),
        flops=operator.flops * factor,
        bytes=_part_grown(operator.bytes, operator.fixed_bytes, factor),
        fused_bytes=None if fused is None else _part_grown(fused, operator.fixed_bytes, factor),
        unfused_bytes=None if unfused is None else _part_grown(unfused, operator.fixed_bytes, factor),
    )


def _part_grown(whole: float, fixed: float, factor: float) -> float:
    fixed = min(fixed, whole)
    return fixed + (whole - fixed) * factor


def memory_at(memory: StepMemory, factor: float) -> StepMemory:
    """The memory of a batch that is `factor` times as large."""
    saved = memory.saved_bytes
    return replace(
        memory,
        saved_bytes=None if saved is None else _part_grown(saved, memory.saved_fixed_bytes, factor),
        joined_bytes=memory.joined_bytes * factor,
        temporary_bytes=times(memory.temporary_bytes, factor),
        layer_bytes=times(memory.layer_bytes, factor),
        kept_bytes=times(memory.kept_bytes, factor),
        input_bytes=times(memory.input_bytes, factor),
        points=tuple((fixed, grown * factor) for fixed, grown in memory.points),
    )


def _with_optimizer(step: StepOperators, name: str) -> StepOperators:
    """The step with another update of the same parameters, in the type that they have in the step's precision."""
    if step.optimizer is not None and step.optimizer.strip().lower() == name.strip().lower():
        return step
    asked = optimizer_named(name)
    if not step.training:
        if asked.update.calls:
            raise PredictionError(f"optimizer {name!r}: the step is a forward pass alone; count a training step")
        return step
    kept = tuple(operator for operator in step.operators if operator.phase != "optimizer")
    if asked.update.calls:
        dtype = parameter_type(precision_named(step.precision))
        elements, tensors = trained(step)
        kept += asked.operators(elements, tensors, dtype, BYTES[dtype])
        kept += tuple(_newton_schulz(step)) if asked.name == "muon" else ()
    return replace(step, operators=kept, optimizer=name.strip().lower())


def _newton_schulz(step: StepOperators) -> Iterator[Operator]:
    """The products of Muon's update in bf16, as `torch.optim.Muon` has them: three in each of five iterations, for
    every matrix but that of the loss' classes (Jordan et al., https://kellerjordan.github.io/posts/muon, 2024)."""
    classes = {operator.shape[1] for operator in step.operators if operator.kind == "softmax"}
    for layer in step.operators:
        if layer.kind != "product" or layer.phase != "forward" or layer.grows != 1 or layer.shape[2] in classes:
            continue
        low, high = sorted(layer.shape[2:])
        for m, n, k in ((low, low, high), (low, low, low), (low, high, low)):
            moved = 2.0 * (m * k + k * n + m * n)
            yield Operator(
                kind="product", phase="optimizer", name="addmm", dtype="bf16", shape=(1, m, n, k),
                flops=2.0 * m * n * k, bytes=moved, launches=1.0, count=_ITERATIONS * layer.count, fixed_bytes=moved,
            )  # fmt: skip


def trained(step: StepOperators) -> tuple[float, float]:
    """The elements and the number of the trained parameters: those of the update, or else from their bytes.

    Raises `PredictionError` if neither is known.
    """
    updates: dict[str, float] = defaultdict(float)
    tensors: dict[str, float] = defaultdict(float)
    for operator in step.operators:
        if operator.kind == "optimizer":
            updates[operator.name] += operator.shape[0] * operator.count
            tensors[operator.name] += operator.shape[1] * operator.count
    if updates:
        # Some operations of an update pass over part of the parameters only, none over more than all.
        name, elements = max(updates.items(), key=lambda item: item[1])
        return elements, tensors[name]
    if step.memory and step.memory.trained_bytes:
        elements = step.memory.trained_bytes / BYTES[parameter_type(precision_named(step.precision))]
        return elements, max(1.0, elements / _ELEMENTS_PER_TENSOR)
    raise PredictionError(
        "the step does not tell how many parameters are trained: count its operators again with ddlprof features"
    )


def _compiled(step: StepOperators) -> StepOperators:
    return replace(step, operators=tuple(_fused(operator) for operator in step.operators), compiled=True)


def _fused(operator: Operator) -> Operator:
    if operator.phase == "optimizer":  # torch.compile of a model does not compile its optimizer
        return operator
    moved, launches = operator.fused_bytes, operator.fused_launches
    moved = operator.bytes * FUSED_BYTES.get(operator.kind, 1.0) if moved is None else moved
    launches = operator.launches * FUSED_LAUNCHES.get(operator.kind, 1.0) if launches is None else launches
    return operator.fused(moved, launches)


def _eager(step: StepOperators) -> StepOperators:
    """The step without torch.compile: as counted or, where that is not known, by the usual factors of fusion."""
    operators = tuple(
        operator
        if operator.phase == "optimizer"
        else operator.unfused(FUSED_BYTES.get(operator.kind, 1.0), FUSED_LAUNCHES.get(operator.kind, 1.0))
        for operator in step.operators
    )
    return replace(step, operators=operators, compiled=False)
