"""A small catalogue and a predictor whose numbers can be checked in the head."""

from __future__ import annotations

from ddlprof.instance_catalog import Catalog, Gpu, InstanceType, Price
from ddlprof.recommender import Estimate, Measurement, PredictionError, StepTimes, Target, Workload

GPUS = (
    Gpu("Small", compute_capability="7.5", memory_gib=10.0),
    Gpu("Big", compute_capability="8.0", memory_gib=100.0, tdp_w=400.0),
)
TYPES = (
    InstanceType("aws", "small.1", "s", "Small", 1, 1.0, gpu_memory_gib=10.0, offered=True),
    InstanceType("aws", "small.4", "s", "Small", 4, 1.0, gpu_memory_gib=10.0, offered=True),
    InstanceType("aws", "big.1", "b", "Big", 1, 1.0, gpu_memory_gib=100.0, offered=True),
    InstanceType("aws", "old.1", "o", "Small", 1, 1.0, gpu_memory_gib=10.0, offered=False),
    InstanceType("aws", "slice.1", "s", "Small", 0, 0.5, gpu_memory_gib=5.0, offered=True),
    InstanceType("gcp", "other.1", "o", "Big", 1, 1.0, gpu_memory_gib=100.0, offered=True),
)
ON_DEMAND = {"small.1": 1.0, "small.4": 5.0, "big.1": 4.0, "old.1": 0.1, "slice.1": 0.5}
PRICES = (
    *(Price("aws", "us-east-1", name, "on_demand", usd, "2026-07-20", "read") for name, usd in ON_DEMAND.items()),
    Price("aws", "us-east-1", "small.1", "spot", 0.5, "2026-08-08", "read"),
    Price("aws", "us-west-2", "small.1", "on_demand", 1.0, "", "parity"),
    Price("gcp", "us-central1", "other.1", "on_demand", 3.0, "2026-07-30", "read"),
)
CATALOG = Catalog(TYPES, GPUS, PRICES)
STEP_S = {"Small": 1.0, "Big": 0.2}
"""Of a batch of 10 on one GPU."""


class MadeUp:
    """Compute by the GPU; 0.5 s over the network for each node after the first; the interval is 20 % either way."""

    def __init__(self) -> None:
        self.asked: list[Target] = []

    def predict(self, target: Target) -> Estimate:
        self.asked.append(target)
        if target.instance_type == "other.1" and len(target.placement) > 2:
            raise PredictionError("nothing is known of so many of them")
        gpu = next(t.gpu_model for t in TYPES if t.instance_type == target.instance_type)
        compute_s = STEP_S[gpu] * target.batch_per_gpu / 10 * (target.grad_accum or 1)
        network_s = 0.5 * (len(target.placement) - 1)
        step_s = compute_s + network_s
        return Estimate(
            step_s=step_s, low_s=0.8 * step_s, high_s=1.2 * step_s,
            times=StepTimes(compute_s=compute_s, network_s=network_s),
            extrapolated=gpu == "Big", basis=("made up",),
        )  # fmt: skip


def five_gib_and_half_a_sample(
    workload: Workload, batch: int, precision: str, strategy: str, gpus: int
) -> float | None:
    """GiB: 5, and half a one for each sample."""
    return 5.0 + batch / 2


def job(batch: int = 8, placement: tuple[int, ...] = (1,), grad_accum: int = 1, precision: str = "fp32") -> Workload:
    measured = Measurement(
        "small.1", placement=placement, batch_per_gpu=batch, step_s=1.0, grad_accum=grad_accum, precision=precision
    )
    return Workload("job", 10, 20, 1e6, None, None, None, None, None, [measured])
