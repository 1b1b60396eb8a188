"""The memory of each rank of a layout: weights, gradients, states, activations in flight, logits, buffers.

Activations of a layer are those that Korthikanti et al. ("Reducing Activation Recomputation in Large Transformer
Models", 2022) count, for 16-bit activations, with the sizes of gated networks, grouped queries and experts. A stage
holds as many micro-batches as its schedule has in flight: the first stage of 1F1B as many as there are stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.compute.memory import CONTEXT_GIB, GIB
from ddlprof.recommender.compute.memory_fit import NeededMemory
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.layouts.coefficients import LayoutCoefficients
from ddlprof.recommender.layouts.layer import HALF_BYTES
from ddlprof.recommender.layouts.share import RankParameters, layer_share, stage_parameters

_WEIGHTS, _GRADIENTS, _STATES = 2.0, 4.0, 12.0
"""Bytes of a parameter, unless all is of one type: its weight in bf16, its gradient in fp32 while it is reduced, and
the fp32 weight with both moments of Adam."""
_SHARDED_WEIGHTS, _SHARDED_STATES = 4.0, 8.0
"""The same under FSDP, whose divided weights are those in fp32."""
_MOMENTS = 2.0
"""Of Adam."""
_DROPOUT_MASKS = 2.0
"""Bytes for each element of `hidden`: the masks of a layer without a gate, which trains with dropout."""
_SCORES = 5.0
"""Bytes of a score of attention that is not fused: softmax, its dropout and the mask."""
_WORKSPACE = 96 * 2.0**20
"""Bytes of the libraries' workspaces, of masks and of the ends of the model, as Megatron-LM's own tests show."""
_BELOW = 0.2
"""The lower end of the interval, as a share below the count: by so much the count is off on layouts kept aside."""
_GATHERED_LAYERS = 2.0
"""Layers that FSDP holds in full: the one computed, and the next."""


@dataclass(frozen=True)
class LayoutMemory:
    """Bytes of the rank that needs most, by use."""

    weights: float
    gradients: float
    states: float
    activations: float
    logits: float
    buffers: float
    """What is gathered or reduced for a moment, and temporaries of a layer's backward."""
    context: float
    """CUDA and its libraries, outside the allocator."""
    spread: float = 0.0
    """How much more activations, logits and buffers may take, as a share."""
    stage: int = 0
    """The stage of that rank, counted from 0."""
    least: float | None = None
    """The bytes with weights, gradients and states all in 16 bit, where it is not known whether they are."""

    @property
    def parts(self) -> dict[str, float]:
        """The bytes by use."""
        return {field.name: getattr(self, field.name) for field in fields(self)[:-3]}

    @property
    def bytes(self) -> float:
        """All together."""
        return sum(self.parts.values())

    @property
    def high(self) -> float:
        """The bytes at the upper end: what a GPU must have for the layout to fit."""
        return self.bytes + self.spread * (self.activations + self.logits + self.buffers)

    @property
    def needed(self) -> NeededMemory:
        """The need with its interval, in GiB."""
        least = self.bytes if self.least is None else min(self.least, self.bytes)
        return NeededMemory(self.gib, least / GIB * (1.0 - _BELOW), self.high / GIB)

    @property
    def gib(self) -> float:
        """All together, in GiB."""
        return self.bytes / GIB


def layout_memory(
    model: Transformer, layout: Layout, gpus: int, sequences: int, micro_batches: int, stages: Sequence[int],
    fitted: LayoutCoefficients,
) -> LayoutMemory:  # fmt: skip
    """The memory of the rank that needs most. `stages`: layers of each stage; `sequences` of a micro-batch."""
    tokens = sequences * model.seq / layout.context
    held = stage_parameters(model, layout, stages)
    needs = [
        _stage(model, layout, gpus, tokens, micro_batches, stages, index, mine, fitted)
        for index, mine in enumerate(held)
    ]
    return max(needs, key=lambda need: need.bytes)


def _stage(
    model: Transformer, layout: Layout, gpus: int, tokens: float, micro_batches: int, stages: Sequence[int],
    index: int, held: RankParameters, fitted: LayoutCoefficients,
) -> LayoutMemory:  # fmt: skip
    first = sum(stages[:index])
    mixed = model.with_experts(first, stages[index])
    numbers = {False: stages[index] - mixed, True: mixed}
    kinds = [experts for experts, layers in numbers.items() if layers]
    kept_bytes = [numbers[each] * layer_bytes(model, layout, each, fitted) * tokens for each in kinds]
    flight = _in_flight(layout, len(stages), index, micro_batches)
    last = index == len(stages) - 1
    whole = layout if layout.recompute == "none" else replace(layout, recompute="none")
    again = max((layer_bytes(model, whole, each, fitted) * tokens for each in kinds), default=0.0)
    ranks = layout.data_ranks(gpus) * layout.context
    sharded, gradients, states = layout.shards
    shared = held.divided(layout, gpus)
    one = fitted.parameter_bytes
    buffers = _WORKSPACE + (again if layout.recompute != "none" else again / 2)
    if sharded and ranks > 1:
        largest = max((layer_share(model, layout, each).all for each in kinds), default=0.0)
        buffers += (_GATHERED_LAYERS * HALF_BYTES + (one or _GRADIENTS)) * largest
    return LayoutMemory(
        weights=(one or _SHARDED_WEIGHTS) * shared if sharded else (one or _WEIGHTS) * held.all,
        gradients=(one or fitted.gradient_bytes) * (shared if gradients else held.all),
        states=(_MOMENTS * one or (_SHARDED_STATES if sharded else _STATES)) * (shared if states else held.all),
        activations=sum(kept_bytes) * flight,
        logits=fitted.logit_bytes * tokens * model.vocab / layout.tensor if last else 0.0,
        buffers=buffers,
        context=CONTEXT_GIB * GIB,
        spread=fitted.memory_spread,
        stage=index,
    )


def _in_flight(layout: Layout, stages: int, index: int, micro_batches: int) -> float:
    """Micro-batches whose activations a stage holds, under 1F1B or its interleaved form."""
    if layout.virtual == 1:
        return min(stages - index, micro_batches)
    parts = stages * layout.virtual + stages - 1 - 2 * index
    return min(parts / layout.virtual, micro_batches)


def layer_bytes(model: Transformer, layout: Layout, experts: bool, fitted: LayoutCoefficients) -> float:
    """Bytes for each token that one layer keeps for backward on one rank."""
    tensor = layout.tensor
    around = tensor if layout.sequence_parallel else 1
    residual = HALF_BYTES * model.hidden / around
    if layout.recompute == "full":
        return residual
    keys, heads = max(model.kv_heads / tensor, 1), model.heads / tensor
    attended = HALF_BYTES * heads * model.of_value
    if model.kv_lora:
        projected = HALF_BYTES * heads * (2 * model.head_dim + model.of_value)
        projected += HALF_BYTES * 2 * (model.q_lora + model.kv_lora + model.rope_dim)
    else:
        projected = HALF_BYTES * (heads * model.head_dim + keys * (model.head_dim + model.of_value))
    inner, outer = _network_bytes(model, layout, experts)
    if layout.recompute == "selective":
        kept = 1 - fitted.selective_products
        return residual + attended + kept * (projected + inner + residual)
    masks = 0.0 if model.gated else _DROPOUT_MASKS * model.hidden / around
    scores = 0.0 if model.flash else _SCORES * heads * model.seq / layout.context
    return fitted.activations * (4 * residual + masks + projected + attended + scores + inner + outer)


def _network_bytes(model: Transformer, layout: Layout, experts: bool) -> tuple[float, float]:
    """Results of the products into a feed-forward network, and of its activation."""
    widths = model.products - 1
    if not experts:
        each = HALF_BYTES * model.ffn / layout.tensor
        return widths * each, each
    copies = model.experts_per_token / layout.tensor
    shared = HALF_BYTES * model.shared_experts * model.expert_ffn / layout.tensor
    routed, moved = copies * HALF_BYTES * model.expert_ffn, copies * HALF_BYTES * 2 * model.hidden
    return widths * (routed + shared) + moved, routed + shared
