"""What one rank computes of one layer, and of the head, for one micro-batch: operators with their sizes.

Tensor parallelism divides the widths of products (Shoeybi et al., Megatron-LM, 2019) and, with sequence parallelism,
the tokens of what lies between them (Korthikanti et al., 2022). Context parallelism divides the tokens of everything.
An expert is on one rank: expert parallelism divides whole experts among ranks that exchange tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ddlprof.instance_catalog import Gpu
from ddlprof.model.operators import Operator
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.layout import Layout

HALF_BYTES = 2
_LOGITS_PASSES = 5.0
"""How often logits in fp32 are read or written by a loss in steps: the cast, the maximum and the sum of exponentials,
the loss, and backward."""
_FLASH_BACKWARD = 2.5
"""FLOPs of fused attention's backward over those of its forward: it computes the scores again (Dao, 2023)."""


@dataclass(frozen=True)
class Micro:
    """A micro-batch as one rank sees it."""

    model: Transformer
    layout: Layout
    sequences: int
    precision: str = "bf16"
    """bf16, fp16 or fp8: the type of products."""

    @property
    def tokens(self) -> int:
        """The tokens that the tensor ranks share."""
        return max(self.sequences * self.model.seq // self.layout.context, 1)

    @property
    def own_tokens(self) -> float:
        """The tokens of one rank between products."""
        return self.tokens / self.layout.tensor if self.layout.sequence_parallel else self.tokens

    @property
    def half(self) -> str:
        """The type of everything but products."""
        return "fp16" if self.precision in ("fp16", "amp-fp16") else "bf16"

    @property
    def expert_tokens(self) -> float:
        """The tokens that one expert sees, if all are equally busy: those of all ranks that share the experts."""
        model = self.model
        return self.tokens / self.layout.tensor * self.layout.expert * model.experts_per_token / max(model.experts, 1)


class Phase(NamedTuple):
    """Seconds of one rank's kernels in one phase of one layer, by what limits them, and the number of kernels."""

    products_s: float
    attention_s: float
    streams_s: float
    kernels: float


class LayerTime(NamedTuple):
    """Forward, backward, and what selective recomputation computes again."""

    forward: Phase
    backward: Phase
    again: Phase


def layer_time(micro: Micro, experts: bool, gpu: Gpu, operators: OperatorModel) -> LayerTime:
    """The kernels of one layer on one rank. `experts`: whether its feed-forward network is a mixture of experts."""
    forward = [*_attention(micro), *(_experts(micro) if experts else _dense(micro, micro.model.ffn))]
    forward += list(_between(micro))
    return _timed(forward, micro, gpu, operators)


def head_time(micro: Micro, gpu: Gpu, operators: OperatorModel) -> LayerTime:
    """The last norm, the product with the vocabulary, and the loss."""
    model, width = micro.model, micro.model.vocab / micro.layout.tensor
    forward = [
        _normalization(micro, micro.own_tokens * model.hidden),
        _product(micro, 1, micro.tokens, width, model.hidden),
        _stream("softmax", micro.tokens * width, 4 * _LOGITS_PASSES / 2),
    ]
    return _timed(forward, micro, gpu, operators)


def _timed(forward: list[Operator], micro: Micro, gpu: Gpu, operators: OperatorModel) -> LayerTime:
    backward = [each for operator in forward for each in _backward(operator)]
    again = [each for each in forward if each.kind != "product"]
    seconds = iter(_seconds(tuple(forward + backward), gpu, operators))
    found = [(each, next(seconds)) for each in forward], [(each, next(seconds)) for each in backward]
    return LayerTime(_sum(found[0]), _sum(found[1]), _sum([row for row in found[0] if row[0] in again]))


def _seconds(rows: tuple[Operator, ...], gpu: Gpu, operators: OperatorModel) -> list[float]:
    seconds: list[float] = operators.operators(rows, gpu).tolist()
    return seconds


def _sum(rows: Sequence[tuple[Operator, float]]) -> Phase:
    def of(*kinds: str) -> float:
        return sum(seconds * each.count for each, seconds in rows if each.kind in kinds)

    streams = of("normalization", "softmax", "elementwise", "embedding", "copy")
    return Phase(of("product"), of("attention"), streams, sum(each.launches * each.count for each, _ in rows))


def _attention(micro: Micro) -> Iterator[Operator]:
    """The products around attention and attention itself."""
    model, tensor = micro.model, micro.layout.tensor
    heads, keys = model.heads / tensor, max(model.kv_heads / tensor, 1)
    if model.kv_lora:
        yield from _latent(micro, heads)
    else:
        width = heads * model.head_dim + keys * (model.head_dim + model.of_value)
        yield _product(micro, 1, micro.tokens, width, model.hidden)
    flops = micro.tokens * model.attention_flops / tensor
    moved = HALF_BYTES * micro.tokens * 2 * (heads + keys) * model.head_dim
    sizes = (round(micro.sequences * heads), model.seq // micro.layout.context, model.seq, model.head_dim)
    yield Operator("attention", "forward", "attention", micro.half, sizes, flops, moved, 1, 1)
    yield _product(micro, 1, micro.tokens, model.hidden, heads * model.of_value)
    yield _stream("elementwise", micro.tokens * (heads + keys) * model.head_dim, 2 * HALF_BYTES)  # positions


def _latent(micro: Micro, heads: float) -> Iterator[Operator]:
    """Multi-head latent attention (DeepSeek-V2): the narrow products are not divided by tensor parallelism."""
    model = micro.model
    if model.q_lora:
        yield _product(micro, 1, micro.own_tokens, model.q_lora, model.hidden)
    yield _product(micro, 1, micro.tokens, heads * model.head_dim, model.q_lora or model.hidden)
    yield _product(micro, 1, micro.own_tokens, model.kv_lora + model.rope_dim, model.hidden)
    widened = heads * (model.head_dim - model.rope_dim + model.of_value)
    yield _product(micro, 1, micro.tokens, widened, model.kv_lora)


def _dense(micro: Micro, ffn: float) -> Iterator[Operator]:
    model, width = micro.model, ffn / micro.layout.tensor
    yield _product(micro, 1, micro.tokens, (model.products - 1) * width, model.hidden)
    yield _stream("elementwise", micro.tokens * width, HALF_BYTES * model.products)
    yield _product(micro, 1, micro.tokens, model.hidden, width)


def _experts(micro: Micro) -> Iterator[Operator]:
    """Router, permutation of tokens, experts' products as one for each, and shared experts."""
    model, layout = micro.model, micro.layout
    own = micro.tokens / layout.tensor
    yield _product(micro, 1, own, model.experts, model.hidden)
    yield _stream("softmax", own * model.experts, 16)
    local, tokens = model.experts / layout.expert, micro.expert_tokens
    copies = own * model.experts_per_token
    yield _stream("embedding", copies * model.hidden, 2 * HALF_BYTES)  # to the order of experts
    yield _product(micro, local, tokens, (model.products - 1) * model.expert_ffn, model.hidden)
    yield _stream("elementwise", copies * model.expert_ffn, HALF_BYTES * model.products)
    yield _product(micro, local, tokens, model.hidden, model.expert_ffn)
    yield _stream("embedding", copies * model.hidden, 2 * HALF_BYTES)  # and back, weighted
    if model.shared_experts:
        yield from _dense(micro, model.shared_experts * model.expert_ffn)


def _between(micro: Micro) -> Iterator[Operator]:
    """Two norms, and two residual sums."""
    elements = micro.own_tokens * micro.model.hidden
    for _ in range(2):
        yield _normalization(micro, elements)
        yield _stream("elementwise", elements, 3 * HALF_BYTES)


def _normalization(micro: Micro, elements: float) -> Operator:
    rows = max(round(elements / micro.model.hidden), 1)
    moved = 2.0 * HALF_BYTES * elements
    return Operator("normalization", "forward", "norm", micro.half, (rows, micro.model.hidden), 0.0, moved, 1, 1)


def _stream(kind: str, elements: float, bytes_each: float) -> Operator:
    return Operator(kind, "forward", kind, "bf16", (max(round(elements), 1), 1), 0.0, elements * bytes_each, 1, 1)


def _product(micro: Micro, batch: float, rows: float, columns: float, summed: float) -> Operator:
    sizes = tuple(max(round(size), 1) for size in (batch, rows, columns, summed))
    return _product_of(micro.precision if micro.precision == "fp8" else micro.half, sizes)


def _product_of(dtype: str, sizes: tuple[int, ...], phase: str = "forward") -> Operator:
    batch, rows, columns, summed = sizes
    flops = 2.0 * batch * rows * columns * summed
    moved = float(HALF_BYTES * batch * (rows * columns + rows * summed + columns * summed))
    return Operator("product", phase, "mm", dtype, sizes, flops, moved, 1, 1)


def _backward(operator: Operator) -> Iterator[Operator]:
    """The operators of backward for one of forward: two products for each product."""
    if operator.kind == "product":
        batch, rows, columns, summed = operator.shape
        yield _product_of(operator.dtype, (batch, rows, summed, columns), "backward")
        yield _product_of(operator.dtype, (batch, columns, summed, rows), "backward")
        return
    more = {"attention": _FLASH_BACKWARD, "normalization": 1.5, "elementwise": 5 / 3}.get(operator.kind, 1.0)
    yield Operator(
        operator.kind, "backward", operator.name, operator.dtype, operator.shape, operator.flops * more,
        operator.bytes * more, operator.launches, operator.count,
    )  # fmt: skip


@lru_cache(maxsize=1)
def shipped_operators() -> OperatorModel:
    """The model of operators with the package's coefficients."""
    return OperatorModel.shipped()
