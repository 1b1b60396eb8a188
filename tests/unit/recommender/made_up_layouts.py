"""A predictor of layouts whose numbers can be checked in the head, and the model that it is asked about."""

from __future__ import annotations

from typing import Any

from ddlprof.recommender import Estimate, StepTimes, Target, Workload, transformer

JOB = transformer(layers=16, hidden=1024, heads=16, kv_heads=8, ffn=4096, vocab=32000, seq=4096, name="made-up")
EXPERTS = transformer(
    layers=16, hidden=1024, heads=16, vocab=32000, seq=32768, experts=8, experts_per_token=2, expert_ffn=1024
)
_RECOMPUTED = {"none": 1.0, "selective": 1.05, "full": 1.25}
_KEPT_GIB = {"none": 30.0, "selective": 20.0, "full": 5.0}


def gib_of(target: Target) -> float:
    """40 GiB of states over tensor and pipeline, a quarter of it with zero3, and activations of each micro-batch."""
    layout = target.layout
    assert layout is not None
    states = 40.0 / (layout.tensor * layout.pipeline) * (0.25 if layout.shard == "zero3" else 1.0)
    return states + _KEPT_GIB[layout.recompute] * target.batch_per_gpu / (layout.tensor * layout.context)


class MadeUpLayouts:
    """1 s of computation for a sequence of one GPU, a tenth more with each doubling of tensor, the bubble of 1F1B."""

    def __init__(self, workload: Workload = JOB, **_: Any) -> None:
        self.workload = workload
        self.asked: list[Target] = []

    def memory_gib(self, target: Target) -> float:
        return gib_of(target)

    def predict(self, target: Target) -> Estimate:
        self.asked.append(target)
        layout, micro_batches = target.layout, target.grad_accum or 1
        assert layout is not None
        sequences = micro_batches * target.batch_per_gpu
        compute_s = _RECOMPUTED[layout.recompute] * sequences / layout.model_ranks
        bubble_s = compute_s * (layout.pipeline - 1) / (layout.virtual * micro_batches)
        tensor_s = 0.1 * compute_s * (layout.tensor.bit_length() - 1)
        data_s = 0.2 if layout.shard == "zero3" else 0.1
        step_s = compute_s + bubble_s + tensor_s + data_s
        tokens = sequences * layout.data_ranks(sum(target.placement)) * 4096
        return Estimate(
            step_s=step_s, low_s=0.8 * step_s, high_s=1.25 * step_s,
            times=StepTimes(compute_s=compute_s, interconnect_s=tensor_s, network_s=data_s, bubble_s=bubble_s),
            extrapolated=False, basis=("made up",), memory_gib=gib_of(target), fits_memory=gib_of(target) <= 60,
            tokens_per_s=tokens / step_s, mfu=0.5 * compute_s / step_s, dimensions={"tensor": tensor_s, "data": data_s},
        )  # fmt: skip
