"""What `ddlprof probe` measured on a machine, as its file has it and its page shows it."""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = ("products", "memory", "copies", "launches", "collectives")
"""What is measured, in this order."""


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    group: str
    """One of `GROUPS`."""
    key: str
    """Its name in the catalogue, with the unit: bf16_tflops, memory_gb_s, nccl_allreduce_intra_gb_s, ..."""
    what: str
    """What was done, in words: `bf16 8192 x 8192 x 8192`."""
    value: float
    unit: str
    """TFLOP/s, GB/s or us."""
    notes: str = ""


@dataclass(frozen=True)
class Probed:
    """All figures of one machine, and under which circumstances they hold. None: not known."""

    device: str
    """The GPU as torch calls it, or the model of the processor."""
    is_gpu: bool
    figures: tuple[Figure, ...]
    measured_at: str
    """The ISO date and time."""
    seconds: float
    """How long everything took."""
    memory_gib: float | None = None
    """The memory of the GPU."""
    instance_type: str | None = None
    host: str = ""
    torch: str = ""
    """The version of torch."""
    ranks: int = 1
    """The processes between which collectives were measured."""
    nodes: int = 1
    clock_mhz: float | None = None
    """The mean clock while products ran."""
    power_w: float | None = None
    """The mean power while products ran."""
    missing: tuple[str, ...] = ()
    """What could not be measured and why, one sentence each."""

    def value(self, key: str) -> float | None:
        """The figure of that key."""
        return next((figure.value for figure in self.figures if figure.key == key), None)
