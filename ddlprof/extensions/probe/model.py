"""The results of `ddlprof probe`, as in its file and on its page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    group: str
    """products, memory, copies, launches or collectives."""
    key: str
    """Its name in the catalogue, with the unit: bf16_tflops, memory_gb_s, nccl_allreduce_intra_gb_s, ..."""
    what: str
    """What was measured, in words: `bf16 8192 x 8192 x 8192`."""
    value: float
    unit: str
    """TFLOP/s, GB/s or us."""
    notes: str = ""


@dataclass(frozen=True)
class Probed:
    """All figures of one machine and the conditions under which they hold. None: not known."""

    device: str
    """The name of the GPU by torch, or the model of the processor."""
    is_gpu: bool
    figures: tuple[Figure, ...]
    measured_at: str
    """The ISO date and time."""
    seconds: float
    """The seconds that the probe took."""
    memory_gib: float | None = None
    """The memory of the GPU in GiB."""
    instance_type: str | None = None
    host: str = ""
    torch: str = ""
    """The version of torch."""
    ranks: int = 1
    """The number of processes between which collectives were measured."""
    nodes: int = 1
    clock_mhz: float | None = None
    """The mean clock in MHz while products ran."""
    power_w: float | None = None
    """The mean power in watts while products ran."""
    missing: tuple[str, ...] = ()
    """What could not be measured and why, one sentence each."""

    def value(self, key: str) -> float | None:
        return next((figure.value for figure in self.figures if figure.key == key), None)
