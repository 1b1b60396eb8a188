"""Memory that one GPU needs at another batch, precision or sharding, from the peak of one run and nothing else."""

from __future__ import annotations

from recommender.strategy import held_share
from recommender.workload import Measurement, Workload

CONTEXT_GIB = 0.8
"""What the CUDA context and its libraries hold beside the allocator's memory: 0.5-1 GiB."""
_GIB = 2**30
_STATES = 4.0
"""Weights, gradients and the two moments of Adam, each as large as the gradients."""
_MOST_STATES = 0.9
"""Share of the peak: less than Adam's states (SGD, a fused optimizer) leaves a tenth or more for activations."""


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
    peak_gib = workload.peak_memory_bytes / _GIB
    growth = batch_per_gpu / measured.batch_per_gpu * _activation_growth(measured.precision, precision)
    if workload.gradient_bytes is None:
        return peak_gib * max(growth, 1.0) + CONTEXT_GIB
    states_gib = _STATES * workload.gradient_bytes / _GIB
    held_gib = min(states_gib * held_share(measured.strategy, _world_size(measured)), _MOST_STATES * peak_gib)
    # A run that held less than Adam's states holds as much less of them when they are sharded differently.
    whole_gib = held_gib / held_share(measured.strategy, _world_size(measured))
    activations_gib = (peak_gib - held_gib) * growth
    return whole_gib * held_share(strategy, world_size) + activations_gib + CONTEXT_GIB


def _activation_growth(before: str, after: str) -> float:
    return 2.0 if _is_half(before) and not _is_half(after) else 1.0


def _is_half(precision: str) -> bool:
    return "16" in precision or "amp" in precision


def _world_size(measurement: Measurement) -> int:
    return sum(measurement.placement)
