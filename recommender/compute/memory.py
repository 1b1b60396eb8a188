"""The memory that one GPU needs for a job, from the operators of its step, corrected by the measured peak of a run.

The peak is in backward, where gradients are made and activations freed, or in the update, where the optimizer's
temporaries are. Checked against torch's allocator by `scripts/bench/memory_model.py`. Without operators, the measured
peak alone is scaled (`scaled_peak_gib`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import NamedTuple

from ddlprof.model.operators import StepMemory, StepOperators
from ddlprof.recommender.compute.adapters import is_in_four_bits
from ddlprof.recommender.compute.compiled_memory import compiled_memory
from ddlprof.recommender.compute.deepspeed import (
    BUCKET_ELEMENTS,
    BUCKETS,
    LIVE_ELEMENTS,
    UPDATE_BYTES,
    gathered_bytes,
    in_half_precision,
    state_bytes,
)
from ddlprof.recommender.compute.memory_fit import NeededMemory
from ddlprof.recommender.compute.optimizers import OptimizerKind, optimizer_named
from ddlprof.recommender.compute.precisions import BYTES, parameter_type, precision_named, results
from ddlprof.recommender.compute.step_parts import AS_COUNTED, Changes
from ddlprof.recommender.compute.what_if import as_asked, memory_at
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.strategy import Strategy, held_share, strategy_named
from ddlprof.recommender.workload import MAX_BATCH, Measurement, Workload

GIB = 2**30
WORKSPACE_BYTES = 2 * 32 * 2**20
"""The workspaces of cuBLAS in bytes: 32 MiB from Hopper on, 8 MiB before, for each of two threads: the script's and
autograd's. On an H200 every model held 33 MiB more than with one."""
CONVOLUTION_SHARE = 0.25
"""The workspace of cuDNN's algorithms, as a share of the operands of the largest convolution. An assumption: many need
none, some as much as the operands."""
GATHERED_BLOCKS, MOST_GATHERED_BLOCKS = 3.0, 5.0
"""Blocks that FSDP holds in full: the one computed, the one fetched ahead and gradients being scattered; at most, with
the flat copies that collectives read and write."""
_USUAL_BLOCKS = 12
"""The assumed number of blocks where the size of the largest was not counted."""
_OPTIMIZER = "adamw"
"""The optimizer assumed where the step has none: it keeps as much state as any usual one."""
_COUNTED, _CORRECTED, _ASSUMED = (0.05, 0.10), (0.03, 0.05), (0.20, 0.30)
"""The interval of the need below and above the estimate, as shares: with all memory of the step counted, corrected by
the peak of a run, or with activations not counted. The upper end includes fragmentation of the allocator."""
_COMPILED_BELOW = 0.25
"""The lower end for a compiled step: torch.compile computes cheap results again in backward instead of saving them, of
a decoder's block a quarter (the results of its activation and of its norms). An assumption."""
_FOUR_BITS_ABOVE = 0.25
"""The upper end with weights in four bits: LitGPT's steps held 12 to 22 % more than counted."""
_CORRECTION = (0.5, 2.0)
"""The range of the factor on activations by the measured peak; a remaining difference counts as a fixed size."""
_SCALED = (0.10, 0.15)
"""The interval of a need scaled from a measured peak without operators. An assumption."""
CONTEXT_GIB = 0.8
"""The memory of the CUDA context and its libraries, outside the allocator: 0.5 to 1 GiB."""
_STATES = 4.0
"""Weights, gradients and the two moments of Adam, each as large as the gradients."""
_MOST_STATES = 0.9
"""The largest share of the peak for states. With less than Adam's states (SGD, a fused optimizer), a tenth or more is
left for activations."""


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes that one GPU needs at the moment of the peak, by use; they add up to `bytes`."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    """Everything alive between operators except gradients: saved for backward, casts of weights, temporaries."""
    input: float = 0.0
    buckets: float = 0.0
    """The flat copies of gradients that DDP reduces."""
    gathered: float = 0.0
    """The parameters and gradients that FSDP holds in full for a moment."""
    update: float = 0.0
    """The temporaries of the optimizer."""
    workspace: float = 0.0
    other: float = 0.0
    """Further memory of the measured run that the operators do not explain."""
    context: float = CONTEXT_GIB * GIB
    low: float = field(default=0.0, metadata={"part": False})
    """The interval of `bytes`: its lower and upper ends."""
    high: float = field(default=0.0, metadata={"part": False})
    basis: str = field(default="", metadata={"part": False})
    """A sentence on the basis of the estimate."""

    @property
    def parts(self) -> dict[str, float]:
        """The bytes by part."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("part", True)}

    @property
    def bytes(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def gib(self) -> float:
        """All parts together, in GiB."""
        return self.bytes / GIB


class _FixedMemory(NamedTuple):
    """The memory of one rank, in bytes, that is independent of the batch."""

    parameters: float
    optimizer: float
    buckets: float
    gathered: float
    least_gathered: float
    most_gathered: float
    gradient_share: float
    """The share of the gradients that a rank holds."""


class JobMemory:
    """The memory of one job, trained in one way, at any batch and number of GPUs; prepared once.

    Settings that are None are as in the workload. Raises `PredictionError` for an unknown optimizer; an unknown
    precision is taken for that of the step.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        precision: str | None = None,
        strategy: str | None = None,
        changes: Changes = AS_COUNTED,
    ) -> None:
        measured = workload.measurements[0] if workload.measurements else None
        self._workload = workload
        self._strategy = strategy or (measured.strategy if measured else "ddp")
        self._precision = precision or (measured.precision if measured else None)
        self._step = _step_asked(workload.step, precision, changes)

    def needed_gib(self, batch_per_gpu: int, world_size: int, grad_accum: int = 1) -> float | None:
        """The GiB that one of `world_size` GPUs needs; `batch_per_gpu`: that of one forward pass.

        None: nothing is known.
        """
        need = self.need(batch_per_gpu, world_size, grad_accum)
        if need is not None:
            return need.gib
        precision = self._precision or "fp32"
        return scaled_peak_gib(self._workload, batch_per_gpu, precision, self._strategy, world_size)

    def needed(self, batch_per_gpu: int, world_size: int, grad_accum: int = 1) -> NeededMemory | None:
        """The same with its 80 % interval."""
        need = self.need(batch_per_gpu, world_size, grad_accum)
        if need is not None:
            return NeededMemory(need.gib, need.low / GIB, need.high / GIB)
        gib = self.needed_gib(batch_per_gpu, world_size, grad_accum)
        below, above = _SCALED
        return None if gib is None else NeededMemory(gib, gib * (1 - below), gib * (1 + above))

    def need(self, batch_per_gpu: int, world_size: int, grad_accum: int = 1) -> MemoryNeed | None:
        """The memory by parts, with its interval; None where the operators of the step are not known."""
        step = self._step
        if step is None:
            return None
        factor, other = self._correction or (1.0, 0.0)
        need = _need(step, batch_per_gpu, self._strategy, world_size, grad_accum, factor)
        if self._correction is None:
            return need
        need = replace(need, other=other)
        below, above = _CORRECTED
        basis = f"{need.basis}, corrected by the measured peak"
        return replace(need, low=need.bytes * (1 - below), high=need.bytes * (1 + above), basis=basis)

    def largest_batch(self, usable_gib: float, world_size: int, grad_accum: int = 1) -> int:
        """The largest batch whose need is at most `usable_gib`; 0: not even one sample fits, or nothing is known."""

        def fits(batch: int) -> bool:
            needed = self.needed_gib(batch, world_size, grad_accum)
            return needed is not None and needed <= usable_gib

        return largest_fitting(fits)

    @cached_property
    def _correction(self) -> tuple[float, float] | None:
        """The factor on activations and the further bytes that make the estimate for the measured run its peak."""
        workload = self._workload
        peak, step = workload.peak_memory_bytes, workload.step
        measured = next((m for m in workload.measurements if m.instance_type or m.gpu_model), None)
        if not peak or step is None or measured is None:
            return None
        need = _need_of_run(step, measured, 1.0)
        if need is None:
            return None
        gap = peak - (need.bytes - need.context)
        least, most = _CORRECTION
        factor = min(max(1 + gap / need.activations, least), most) if need.activations else 1.0
        corrected = _need_of_run(step, measured, factor)
        assert corrected is not None
        # It may be negative, for example where the optimizer keeps less than assumed.
        return factor, peak - (corrected.bytes - corrected.context)


def largest_fitting(fits: Callable[[int], bool]) -> int:
    """The largest batch for which `fits` is true, by bisection; 0: none. `fits` must be monotonic."""
    if not fits(1):
        return 0
    least, beyond = 1, 2
    while beyond < MAX_BATCH and fits(beyond):
        least, beyond = beyond, 2 * beyond
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if fits(middle) else (least, middle)
    return least


def _step_asked(
    step: StepOperators | None, precision: str | None, changes: Changes = AS_COUNTED
) -> StepOperators | None:
    """The step as asked at the batch that it was counted at; None where its memory was not counted."""
    if step is None or step.memory is None or step.memory.parameter_bytes is None:
        return None
    if precision is not None and not _is_known(precision):
        precision = None  # the run itself says so
    return as_asked(step, batch=step.batch, precision=precision, **vars(changes))


def _is_known(precision: str) -> bool:
    try:
        precision_named(precision)
    except PredictionError:
        return False
    return True


def _need_of_run(step: StepOperators, measured: Measurement, factor: float) -> MemoryNeed | None:
    asked = _step_asked(step, measured.precision)
    if asked is None:
        return None
    world_size = sum(measured.placement)
    return _need(asked, measured.batch_per_gpu, measured.strategy, world_size, measured.grad_accum, factor)


def _need(
    step: StepOperators, batch: int, strategy: str, world_size: int, grad_accum: int, factor: float = 1.0
) -> MemoryNeed:
    """The need at the moment of the peak. Activations are multiplied by `factor`."""
    memory = step.memory
    assert memory is not None
    memory = memory_at(memory, batch / step.batch)
    if step.compiled:
        memory = compiled_memory(step, memory, batch / step.batch)
    optimizer, guessed = _optimizer(step)
    held = _fixed_memory(step, memory, optimizer, strategy_named(strategy), world_size)
    trained = memory.trained_bytes or 0.0
    points, counted = _points(step, memory, batch)
    gradients = trained * held.gradient_share if step.training else 0.0
    largest = memory.largest_tensor_bytes or 0.0
    base = MemoryNeed(
        parameters=held.parameters, optimizer=held.optimizer, buckets=held.buckets,
        input=memory.input_bytes or 0.0,
        workspace=WORKSPACE_BYTES + CONVOLUTION_SHARE * _largest_convolution_bytes(step) * batch / step.batch,
    )  # fmt: skip
    in_flat_copies = strategy_named(strategy).deepspeed and in_half_precision(step)
    added = largest if grad_accum > 1 else None
    if in_flat_copies:
        added = gradients if grad_accum > 1 else 0.0
    moments = [(*_gradients(fixed, trained, held.gradient_share, added), grown * factor) for fixed, grown in points]
    made, casts, grown = max(moments, key=sum)
    need = replace(base, gradients=made, activations=casts + grown, gathered=held.gathered)
    updated = replace(base, gradients=gradients)
    if in_flat_copies:
        updated = _in_deepspeeds_update(updated, held, strategy_named(strategy).deepspeed == 3 and world_size > 1)
    elif step.training:
        updated = replace(updated, update=optimizer.temporary_bytes(gradients, largest))
    in_parts = max(need.bytes, replace(updated, update=min(updated.update, UPDATE_BYTES * LIVE_ELEMENTS)).bytes)
    need = max(need, updated, key=lambda moment: moment.bytes)
    below, above = _COUNTED if counted else _ASSUMED
    basis = "memory: from the tensors of the step" if counted else "memory: from the operators, activations assumed"
    if step.compiled:
        basis += ", without those that torch.compile joins"
        below = max(below, _COMPILED_BELOW)
    if is_in_four_bits(step):
        basis += ", weights of linear layers in four bits"
        above = max(above, _FOUR_BITS_ABOVE)
    if step.precision.startswith("fp8"):
        basis += f"; parameters, gradients and states stay in {parameter_type(precision_named(step.precision))}"
    if guessed:
        basis += f", the optimizer taken for {_OPTIMIZER}"
        below = 0.3
    low = (in_parts if strategy_named(strategy).deepspeed == 3 else need.bytes) * (1 - below)
    low -= held.gathered - held.least_gathered
    if not step.compiled:
        # A loss written in parts, fused or in 16 bit has no copies of the logits either.
        fused_loss = replace(step, compiled=True, memory=step.memory and replace(step.memory, joined_bytes=0.0))
        fused = _need(fused_loss, batch, strategy, world_size, grad_accum, factor)
        low = min(low, fused.bytes * (1 - below))
    high = need.bytes * (1 + above) + (held.most_gathered - held.gathered if need.gathered else 0.0)
    return replace(need, low=low, high=high, basis=basis)


def _in_deepspeeds_update(updated: MemoryNeed, held: _FixedMemory, gathers: bool) -> MemoryNeed:
    """The moment of an update by DeepSpeed. The allocator still has the buckets of backward where the copy of the
    gradients in fp32, which is in one piece, fits in none of them. ZeRO-3 that `gathers` updates in parts, beside what
    its stream of gathers keeps."""
    update = UPDATE_BYTES / 2 * updated.gradients
    if gathers:
        return replace(updated, update=min(update, UPDATE_BYTES * LIVE_ELEMENTS), gathered=held.gathered)
    kept = held.gathered if 2 * updated.gradients > held.gathered / BUCKETS else 0.0
    return replace(updated, update=update, gathered=kept)


def _gradients(fixed: float, trained: float, share: float, added: float | None) -> tuple[float, float]:
    """Splits memory that is independent of the batch into gradients, as a rank holds them, and the rest.

    `added`: what is added to gradients that exist all the time, such as the largest one to accumulated ones.
    """
    made = min(fixed, trained)
    if added is not None:
        return trained * share + (added if trained else 0.0), fixed - made
    return made * share, fixed - made


def _optimizer(step: StepOperators) -> tuple[OptimizerKind, bool]:
    """The optimizer of the step, and whether it was assumed."""
    if not step.training:
        return optimizer_named("none"), False
    try:
        return optimizer_named(step.optimizer or ""), False
    except PredictionError:
        return optimizer_named(_OPTIMIZER), True


def _fixed_memory(
    step: StepOperators, memory: StepMemory, optimizer: OptimizerKind, strategy: Strategy, world_size: int
) -> _FixedMemory:
    whole, trained = memory.parameter_bytes or 0.0, memory.trained_bytes or 0.0
    if not step.training:
        return _FixedMemory(whole, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    dtype = parameter_type(precision_named(step.precision))
    states = optimizer.state_bytes(trained / BYTES[dtype], BYTES[dtype])
    shares = strategy.shares(world_size)
    least = gathered = most = 0.0
    if strategy.deepspeed and in_half_precision(step):
        states = state_bytes(optimizer, trained / BYTES[dtype])
        if strategy.deepspeed == 3:
            largest = _largest_weight_bytes(step, memory)
            least, gathered = gathered_bytes(BYTES[dtype], whole, largest, world_size)
        buckets = BUCKETS * BYTES[dtype] * BUCKET_ELEMENTS
        least, gathered = least + buckets, gathered + buckets
        most = gathered
    elif shares.parameters < 1:
        block = memory.largest_block_bytes or max(whole / _USUAL_BLOCKS, memory.largest_tensor_bytes or 0.0)
        gathered, most = (min(blocks * block, 2 * whole) for blocks in (GATHERED_BLOCKS, MOST_GATHERED_BLOCKS))
        least = gathered
    # DDP reduces flat copies of the gradients, unless they are views of them (gradient_as_bucket_view).
    buckets = trained if world_size > 1 and shares.gradients == 1 else 0.0
    return _FixedMemory(
        whole * shares.parameters, states * shares.states, buckets, gathered, least, most, shares.gradients
    )


def _largest_weight_bytes(step: StepOperators, memory: StepMemory) -> float:
    """The bytes of the largest weight that is gathered, which may be frozen."""
    products = (each.fixed_bytes for each in step.operators if (each.phase, each.kind) == ("forward", "product"))
    return max([memory.largest_tensor_bytes or 0.0, *products])


def _largest_convolution_bytes(step: StepOperators) -> float:
    """The bytes of operands and result of the largest convolution; 0 if there is none."""
    return max((operator.bytes for operator in step.operators if operator.kind == "convolution"), default=0.0)


def _points(step: StepOperators, memory: StepMemory, batch: int) -> tuple[tuple[tuple[float, float], ...], bool]:
    """Pairs of bytes of gradients and of all else at moments of a micro-batch, and whether they were counted."""
    if memory.points:
        return memory.points, True
    temporary = memory.temporary_bytes or 0.0
    if memory.saved_bytes is not None:
        again = memory.layer_bytes or 0.0 if step.checkpointing else 0.0
        rest, counted = memory.saved_bytes + again + temporary, True
    else:
        made = sum(elements * BYTES.get(operator.dtype, 4) for operator, elements in results(step))
        rest, counted = made * batch / step.batch + temporary, False
    # When gradients are made is not known: half of them are assumed while nearly all is still saved.
    trained = memory.trained_bytes or 0.0
    return ((0.0, rest), (trained / 2, rest), (trained, rest / 2)), counted


def scaled_peak_gib(
    workload: Workload, batch_per_gpu: int, precision: str, strategy: str, world_size: int
) -> float | None:
    """The GiB that one GPU needs: states that do not grow with the batch, activations that do, and the CUDA context.

    `peak_memory_bytes` is taken for that of the first measurement. Its states are 4 x the gradients (Adam); `fsdp`
    divides all of them by the world size, `zero` the two moments. Going from half precision to fp32 doubles the
    activations; the other way nothing is taken off, since much stays in fp32. Without gradient bytes a larger batch
    scales the whole peak and a smaller one none of it, both of which are too much rather than too little.
    None: the peak or its batch is not known. Fragmentation is not in the figure.
    """
    if workload.peak_memory_bytes is None or not workload.measurements:
        return None
    measured = workload.measurements[0]
    peak_gib = workload.peak_memory_bytes / GIB
    growth = batch_per_gpu / measured.batch_per_gpu * _activation_growth(measured.precision, precision)
    if workload.gradient_bytes is None:
        return peak_gib * max(growth, 1.0) + CONTEXT_GIB
    states_gib = _STATES * workload.gradient_bytes / GIB
    held_gib = min(states_gib * held_share(measured.strategy, sum(measured.placement)), _MOST_STATES * peak_gib)
    # A run with less than Adam's states has less in proportion if they are sharded differently.
    whole_gib = held_gib / held_share(measured.strategy, sum(measured.placement))
    activations_gib = (peak_gib - held_gib) * growth
    return whole_gib * held_share(strategy, world_size) + activations_gib + CONTEXT_GIB


def _activation_growth(before: str, after: str) -> float:
    return 2.0 if _is_half(before) and not _is_half(after) else 1.0


def _is_half(precision: str) -> bool:
    return "16" in precision or "amp" in precision or "fp8" in precision
