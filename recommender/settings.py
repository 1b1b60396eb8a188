"""How a job is trained, as people ask for it: precision, strategy, optimizer, and what trades time against memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from instance_catalog import Gpu
from recommender.errors import PredictionError, checked
from recommender.strategy import STRATEGIES
from recommender.workload import Batch, Name, Workload

PRECISIONS: Mapping[str, float] = {
    "fp32": 0.0, "tf32": 8.0, "bf16": 8.0, "fp16": 0.0, "amp-bf16": 8.0, "amp-fp16": 0.0, "amp": 0.0, "fp8": 8.9,
}  # fmt: skip
"""The precisions that can be asked for, each with the compute capability from which a GPU has it in hardware.

Older GPUs run bf16 through fp32, slower than either, and TF32 as fp32. `amp` is `amp-fp16`."""

OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "lamb", "lion", "muon", "nadam", "none", "radam",
    "rmsprop", "sgd",
)  # fmt: skip
"""The optimizers that can be asked for; `none` is a step without an update."""


@dataclass(frozen=True)
class Settings:
    """How a job trains. None: as measured, or where nothing was, as counted."""

    precision: Name | None = None
    """One of `PRECISIONS`."""
    strategy: Name | None = None
    """One of `STRATEGIES`."""
    optimizer: Name | None = None
    """One of `OPTIMIZERS`."""
    grad_accum: Batch | None = None
    """Forward passes for one update."""
    checkpointing: bool | None = None
    """Whether activations are computed again in backward instead of kept."""
    compiled: bool | None = None
    """Whether torch.compile fuses operators."""

    def __post_init__(self) -> None:
        checked(self)

    @property
    def given(self) -> dict[str, Any]:
        """What is not None, by name: fields of `Target`."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def differences(self, workload: Workload) -> dict[str, tuple[Any, Any]]:
        """What is asked and differs from the job, by name: how it was measured (None: not known), and what is asked."""
        before = measured_settings(workload)
        pairs = {name: (getattr(before, name), value) for name, value in self.given.items()}
        return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def measured_settings(workload: Workload) -> Settings:
    """How the job trains by its first measurement and the operators of its step; what neither tells is None, but for
    precision, strategy and accumulation, which are then fp32, ddp and 1."""
    like, step = (workload.measurements[0] if workload.measurements else None), workload.step
    return Settings(
        precision=like.precision if like else step.precision if step else "fp32",
        strategy=like.strategy if like else "ddp",
        optimizer=step.optimizer if step else None,
        grad_accum=like.grad_accum if like else 1,
        checkpointing=step.checkpointing if step else None,
        compiled=step.compiled if step else None,
    )


def check_settings(precision: str | None, strategy: str | None, optimizer: str | None) -> None:
    """Raises PredictionError for a name that nobody knows, naming those known; None is as measured."""
    asked = (("precision", precision, PRECISIONS), ("strategy", strategy, STRATEGIES),
             ("optimizer", optimizer, OPTIMIZERS))  # fmt: skip
    for what, name, known in asked:
        if name is not None and name not in known:
            raise PredictionError(f"{what} {name!r} is not known; one of: {', '.join(known)}")


def lacking(gpu: Gpu, precision: str) -> str | None:
    """What a GPU lacks for a precision, as `no bf16: T4 has none in hardware`; None: nothing, or not known."""
    needed = PRECISIONS.get(precision, PRECISIONS["bf16"] if "bf16" in precision else 0.0)
    if not gpu.compute_capability or float(gpu.compute_capability) >= needed:
        return None
    name = next(name for name in ("bf16", "tf32", "fp8") if name in precision)
    return f"no {name}: {gpu.gpu_model} has none in hardware"
