"""The step of a transformer under a layout: stages of layers, collectives by dimension, the bubble, and the update.

A step of M micro-batches through stages that take t_i each, forward and backward, with v virtual stages:

    step = M * max(t) + (sum(t) - max(t)) / v + data + update

the second term being the bubble (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters",
2021). A layer takes as long as its kernels, or the host that launches them, whichever is longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ddlprof.instance_catalog import Gpu
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.layouts.coefficients import LayoutCoefficients
from ddlprof.recommender.layouts.layer import (
    HALF_BYTES,
    LayerTime,
    Micro,
    Phase,
    head_time,
    layer_time,
    shipped_operators,
)
from ddlprof.recommender.layouts.links import DimensionGroup, Fabric, collective_s, group, send_s
from ddlprof.recommender.layouts.share import RankParameters, rank_parameters

_FP32_BYTES = 4.0
"""Of the numbers for which the traffic of updates was fitted."""
_NORM = 4.0
"""How host and GPU wait for each other: the power of a power mean."""
_USUAL_DOMAIN = 8
"""Tensor ranks beyond these are launched for more slowly."""
_LEAST_EXPOSED = 0.05
"""The share of a hidden collective that remains: its first and its last piece."""


class Sent(NamedTuple):
    """Seconds of a collective, and of the same collective if all its ranks shared one NVLink domain."""

    seconds: float
    inside_s: float

    def times(self, factor: float) -> Sent:
        """So many of them, or a share of them."""
        return Sent(self.seconds * factor, self.inside_s * factor)

    def plus(self, other: Sent) -> Sent:
        """Both, one after the other."""
        return Sent(self.seconds + other.seconds, self.inside_s + other.inside_s)


_NONE = Sent(0.0, 0.0)


@dataclass(frozen=True)
class LayoutStep:
    """The seconds of a step. `dimensions` are exposed."""

    compute_s: float
    other_s: float
    bubble_s: float
    dimensions: dict[str, Sent]
    stages: tuple[int, ...]
    """Layers of each stage."""

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.compute_s + self.other_s + self.bubble_s + sum(each.seconds for each in self.dimensions.values())


@dataclass(frozen=True)
class _Block:
    """A layer, or the head, forward and backward."""

    compute_s: float
    tensor: Sent
    context: Sent
    expert: Sent

    @property
    def seconds(self) -> float:
        return self.compute_s + self.tensor.seconds + self.context.seconds + self.expert.seconds

    def plus(self, other: _Block, times: float = 1.0) -> _Block:
        return _Block(
            self.compute_s + other.compute_s * times,
            self.tensor.plus(other.tensor.times(times)),
            self.context.plus(other.context.times(times)),
            self.expert.plus(other.expert.times(times)),
        )


_EMPTY = _Block(0.0, _NONE, _NONE, _NONE)


class LayoutTime:
    """Times layouts of one model on one kind of GPU and fabric; layers of one shape are timed once."""

    def __init__(
        self, model: Transformer, gpu: Gpu, fabric: Fabric, fitted: LayoutCoefficients, precision: str = "bf16"
    ) -> None:
        self._model, self._gpu, self._fabric, self._fitted = model, gpu, fabric, fitted
        self._precision = precision
        self._gradient_bytes = fitted.parameter_bytes or fitted.reduced_bytes
        self._weight_bytes = fitted.parameter_bytes or fitted.gathered_bytes
        self._operators = shipped_operators()
        self._layers: dict[tuple[object, ...], LayerTime] = {}
        self._blocks: dict[tuple[object, ...], _Block] = {}

    def fitted_as(self, fitted: LayoutCoefficients) -> LayoutTime:
        """The same with other coefficients; the times of layers are shared."""
        other = LayoutTime(self._model, self._gpu, self._fabric, fitted, self._precision)
        other._layers = self._layers
        return other

    def step(self, layout: Layout, gpus: int, sequences: int, micro_batches: int) -> LayoutStep:
        """The step of so many micro-batches of `sequences` in each data rank. The layout divides the GPUs."""
        micro = Micro(self._model, layout, sequences, self._precision)
        layer, head = self._block(micro, "layer"), self._block(micro, "head")
        stages = self.stages(layout, sequences)
        blocks = [_EMPTY.plus(layer, layers) for layers in stages]
        blocks[-1] = blocks[-1].plus(head)
        slowest = max(blocks, key=lambda block: block.seconds)
        send = self._send(micro, gpus)
        fitted, count = self._fitted, micro_batches
        ends_s = [block.seconds + send.seconds for block in blocks]
        bubble_s = (sum(ends_s) - max(ends_s)) / layout.virtual
        parameters = rank_parameters(self._model, layout, stages)
        data = self._data(micro, gpus, parameters, slowest, micro_batches)
        moved = self._gradient_bytes / _FP32_BYTES * fitted.accumulate_bytes * parameters.all * count
        wide = (fitted.parameter_bytes or _FP32_BYTES) / _FP32_BYTES
        owned = parameters.divided(layout, gpus) if layout.shards[2] else parameters.all
        update_s = (moved + wide * fitted.update_bytes * owned) / (self._gpu.memory_bandwidth_gb_s or 1.0) / 1e9
        domains = math.ceil(gpus / self._fabric.domain)
        late = fitted.uneven * math.log2(domains) * (slowest.seconds * count + bubble_s)
        return LayoutStep(
            compute_s=slowest.compute_s * count + update_s,
            other_s=fitted.step_s + fitted.micro_s * count,
            bubble_s=bubble_s,
            dimensions={
                "tensor": slowest.tensor.times(count),
                "pipeline": (_exposed(send, slowest.compute_s) if layout.virtual > 1 else send).times(count),
                "context": slowest.context.times(count),
                "expert": slowest.expert.times(count),
                "data": data.plus(Sent(late, 0.0)),
            },
            stages=stages,
        )

    def stages(self, layout: Layout, sequences: int) -> tuple[int, ...]:
        """Layers of each stage."""
        micro = Micro(self._model, layout, sequences, self._precision)
        layer_s, head_s = self._block(micro, "layer").seconds, self._block(micro, "head").seconds
        return divide(self._model.layers, layout.pipeline, layer_s, head_s if self._fitted.balanced else 0.0)

    def _key(self, micro: Micro, part: object) -> tuple[object, ...]:
        layout = micro.layout
        degrees = layout.tensor, layout.context, layout.expert, layout.pipeline > 1
        return part, *degrees, layout.sequence_parallel, micro.sequences

    def _block(self, micro: Micro, part: str) -> _Block:
        key = (*self._key(micro, part), micro.layout.recompute)
        if key not in self._blocks:
            self._blocks[key] = self._head(micro) if part == "head" else self._mean_layer(micro)
        return self._blocks[key]

    def _mean_layer(self, micro: Micro) -> _Block:
        """The mean of all layers: those with experts and those without."""
        model, mixed = self._model, self._model.mixed_layers
        found = _EMPTY
        for experts, layers in ((False, model.layers - mixed), (True, mixed)):
            if layers:
                found = found.plus(self._layer(micro, experts), layers / model.layers)
        return found

    def _layer(self, micro: Micro, experts: bool) -> _Block:
        key = self._key(micro, experts)
        if key not in self._layers:
            self._layers[key] = layer_time(micro, experts, self._gpu, self._operators)
        time = self._layers[key]
        recompute = micro.layout.recompute
        more = self._fitted.experts if experts else 1.0
        compute_s, attention_s = self._busy_s(time.forward, more), time.forward.attention_s + time.backward.attention_s
        again = {"none": None, "selective": self._selective(time), "full": time.forward}[recompute]
        compute_s += self._busy_s(time.backward, more) + (self._busy_s(again, more) if again else 0.0)
        passes = 3 if recompute == "full" else 2
        around = 1 if experts and not self._model.shared_experts else 2
        exposed = self._fitted.tensor_exposed
        tensor = self._tensor(micro, around).times(passes * exposed)
        return _Block(
            compute_s + self._launching_s(micro.layout, compute_s + tensor.seconds),
            tensor,
            self._context(micro, attention_s),
            self._expert(micro).times(passes * exposed) if experts else _NONE,
        )

    def _launching_s(self, layout: Layout, busy_s: float) -> float:
        """The time that the GPU waits for its host, which launches the collectives of a layer, beside `busy_s`."""
        if layout.tensor == 1:
            return 0.0
        host_s = self._fitted.tensor_host_s * max(1.0, layout.tensor / _USUAL_DOMAIN)
        if layout.pipeline > 1:
            host_s += self._fitted.tensor_stage_s * layout.tensor
        return float((busy_s**_NORM + host_s**_NORM) ** (1 / _NORM)) - busy_s

    def _selective(self, time: LayerTime) -> Phase:
        """What selective recomputation does again: all but products, of which a share."""
        share = self._fitted.selective_products
        return time.again._replace(products_s=share * time.forward.products_s)

    def _head(self, micro: Micro) -> _Block:
        key = self._key(micro, "head")
        if key not in self._layers:
            self._layers[key] = head_time(micro, self._gpu, self._operators)
        time = self._layers[key]
        compute_s = self._busy_s(time.forward) + self._busy_s(time.backward)
        return _Block(compute_s, self._tensor(micro, 1).times(self._fitted.tensor_exposed), _NONE, _NONE)

    def _busy_s(self, phase: Phase, more: float = 1.0) -> float:
        fitted = self._fitted
        gpu_s = fitted.attention * phase.attention_s
        gpu_s += more * (fitted.products * phase.products_s + fitted.streams * phase.streams_s)
        host_s = fitted.kernel_s * phase.kernels
        return float((gpu_s**_NORM + host_s**_NORM) ** (1 / _NORM))

    def _collective(self, kind: str, size: float, ranks: int, stride: int) -> Sent:
        at, fitted = group(ranks, stride, self._fabric.domain), self._fitted

        def seconds(where: DimensionGroup) -> float:
            return collective_s(kind, size, where, self._fabric, fitted.collectives, fitted.network, fitted.hop_s)

        found = seconds(at)
        together = found if at.domains == 1 else min(seconds(DimensionGroup(ranks, 1, ranks)), found)
        return Sent(found, together)

    def _tensor(self, micro: Micro, around: int) -> Sent:
        """The collectives of tensor ranks in one direction, around so many pairs of products."""
        layout = micro.layout
        size = HALF_BYTES * micro.tokens * self._model.hidden
        if layout.tensor == 1:
            return _NONE
        if not layout.sequence_parallel:
            return self._collective("all_reduce", size, layout.tensor, 1).times(around)
        gathered = self._collective("all_gather", size, layout.tensor, 1)
        return gathered.plus(self._collective("reduce_scatter", size, layout.tensor, 1)).times(around)

    def _context(self, micro: Micro, attention_s: float) -> Sent:
        """Keys and values of all context ranks, forward, and twice in backward, behind attention."""
        layout, model = micro.layout, self._model
        if layout.context == 1:
            return _NONE
        width = max(model.kv_heads / layout.tensor, 1) * (model.head_dim + model.of_value)
        size = HALF_BYTES * micro.tokens * layout.context * width
        sent = self._collective("all_gather", size, layout.context, layout.tensor).times(3.0)
        return _exposed(sent, attention_s)

    def _expert(self, micro: Micro) -> Sent:
        """Tokens to their experts and back, in one direction."""
        layout, model = micro.layout, self._model
        size = HALF_BYTES * micro.tokens / layout.tensor * model.experts_per_token * model.hidden
        return self._collective("all_to_all", size, layout.expert, 1).times(2.0)

    def _send(self, micro: Micro, gpus: int) -> Sent:
        """What one micro-batch sends and receives between stages."""
        layout = micro.layout
        if layout.pipeline == 1:
            return _NONE
        at = group(layout.pipeline, gpus // layout.pipeline, self._fabric.domain)
        size = HALF_BYTES * micro.own_tokens * self._model.hidden
        fitted, fabric = self._fitted, self._fabric
        one = [send_s(size, crosses, fabric, fitted.network, fitted.send_s) for crosses in (at.domains > 1, False)]
        return Sent(*one).times(2.0 * layout.virtual)

    def _data(self, micro: Micro, gpus: int, parameters: RankParameters, slowest: _Block, count: int) -> Sent:
        """The exposed traffic of data ranks: gradients, and parameters where they are divided."""
        layout, fitted = micro.layout, self._fitted
        found, layers = _NONE, max(self._model.layers // layout.pipeline, 1)
        ranks, shares = layout.data_ranks(gpus) * layout.context, layout.shard_ranks(gpus)
        of_experts, expert_shares = layout.expert_ranks(gpus), layout.expert_shard_ranks(gpus)
        for held, among, divided, step in (
            (parameters.dense, ranks, shares, layout.tensor),
            (parameters.expert, of_experts, expert_shares, layout.expert),
        ):
            if not held or among == 1:
                continue
            if layout.shards[0]:
                found = found.plus(self._sharded(held, among, divided, step, layers, slowest, count))
                continue
            pieces = max(held / fitted.piece, 1.0)
            kind = "reduce_scatter" if layout.shards[2] else "all_reduce"
            reduced = self._collective(kind, self._gradient_bytes * held / pieces, among, step).times(pieces)
            hidden_s = (fitted.update_hidden if layout.shards[2] else fitted.data_hidden) * slowest.compute_s
            found = found.plus(_exposed(reduced, hidden_s))
            if layout.shards[2]:
                updated = self._collective("all_gather", self._weight_bytes * held / pieces, among, step).times(pieces)
                found = found.plus(_exposed(updated, hidden_s))
        return found

    def _sharded(
        self, held: float, ranks: int, among: int, stride: int, layers: int, slowest: _Block, count: int
    ) -> Sent:
        """FSDP: the parameters of each layer are gathered twice, and its gradients scattered once, in every
        micro-batch; `among` of the `ranks` divide them."""
        gathered = self._collective("all_gather", self._weight_bytes * held / layers, among, stride).times(2.0 * layers)
        size = self._gradient_bytes * held / layers
        scattered = self._collective("reduce_scatter", size, among, stride).times(layers)
        each = gathered.plus(scattered)
        found = _exposed(each, self._fitted.gather_hidden * slowest.compute_s).times(count)
        if among < ranks:
            across = self._collective("all_reduce", self._gradient_bytes * held / among, ranks // among, stride * among)
            found = found.plus(_exposed(across, self._fitted.data_hidden * slowest.compute_s))
        return found


def _exposed(sent: Sent, hidden_s: float) -> Sent:
    """What computation of so many seconds does not hide."""
    if not sent.seconds:
        return sent
    left = max(sent.seconds - hidden_s, _LEAST_EXPOSED * sent.seconds)
    return Sent(left, min(sent.inside_s, left))


def divide(layers: int, stages: int, layer_s: float, head_s: float) -> tuple[int, ...]:
    """Layers of each stage such that the slowest is as fast as can be; the last one has the head."""
    if stages == 1:
        return (layers,)

    def slowest_s(last: int) -> float:
        return max(math.ceil((layers - last) / (stages - 1)) * layer_s, last * layer_s + head_s)

    last = min(range(layers // stages, -1, -1), key=slowest_s)
    each, more = divmod(layers - last, stages - 1)
    return (*(each + (1 if index < more else 0) for index in range(stages - 1)), last)
