"""What a predictor knows of a training job: its model, its work, and the step times measured so far.

None means not known; whoever predicts says what was assumed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recommender.estimate import CARRIED


@dataclass(frozen=True)
class Measurement:
    """The mean steady step of the job on one placement. Times are seconds."""

    instance_type: str | None
    """Name in the catalogue; None for a machine outside a cloud, described by the last three fields."""
    placement: tuple[int, ...]
    """GPUs (on the CPU: processes) used on each node: (4,) four in one machine, (2, 2) two in each of two."""
    batch_per_gpu: int
    """Samples of one rank in one forward pass."""
    step_s: float
    compute_s: float | None = None
    data_s: float | None = None
    exposed_comm_s: float | None = None
    """Communication not hidden behind computation, waiting for stragglers included."""
    precision: str = "fp32"
    strategy: str = "ddp"
    """ddp, fsdp (parameters are sharded) or zero (optimizer states or gradients are); no other can be predicted."""
    grad_accum: int = 1
    """Forward passes for one update."""
    gpu_model: str | None = None
    interconnect: str | None = None
    """Between the GPUs of a machine: pcie3..5 or nvlink1..5, in any spelling that names one of them."""
    network_gbps: float | None = None
    """Gbit/s between two machines."""
    h2d_s: float | None = None
    """Copies to the device that computation waited for."""
    other_s: float | None = None
    """What no other class claims: logging, checkpoints, gaps of the host."""

    @property
    def elsewhere_s(self) -> tuple[float, ...]:
        """What was neither computation nor communication, as far as it was measured."""
        return (self.data_s or 0.0, *self.carried_s.values())

    @property
    def carried_s(self) -> dict[str, float]:
        """The classes that predictions take as they are here."""
        return {name: getattr(self, f"{name}_s") or 0.0 for name in CARRIED}


@dataclass(frozen=True)
class Workload:
    """A training job, independent of where it runs."""

    name: str
    layers: int | None = None
    """Leaf modules with a weight of two or more dimensions (ResNet-50: 54)."""
    parameter_tensors: int | None = None
    gradient_bytes: float | None = None
    global_batch: int | None = None
    """Samples for one update, over all ranks."""
    flops_per_sample: float | None = None
    """Forward and backward, a multiply-add counted as two."""
    loader_cpu_s_per_sample: float | None = None
    """Seconds of one CPU core that the loader spends on a sample."""
    loader_bytes_per_sample: float | None = None
    """Bytes read from storage for a sample."""
    peak_memory_bytes: int | None = None
    """Of one device."""
    measurements: Sequence[Measurement] = ()
    kernels_per_step: float | None = None
    """Device kernels launched in one step of one rank."""
    buckets: int | None = None
    """Reductions of gradients for one update."""
    assumed: Sequence[str] = ()
    """What was not seen but taken for granted, one sentence each; every prediction says so too."""
