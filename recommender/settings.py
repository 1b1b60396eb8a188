"""The settings of a training that a user may change: precision, strategy, optimizer, adapters, and those that trade
time for memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ddlprof.instance_catalog import Gpu
from ddlprof.model.operators import Checkpointing
from ddlprof.recommender.compute.gpu_peaks import matrix_of
from ddlprof.recommender.compute.optimizers import optimizer_named
from ddlprof.recommender.compute.packing import packing_named
from ddlprof.recommender.compute.precisions import precision_named
from ddlprof.recommender.errors import Checked, PredictionError
from ddlprof.recommender.strategy import STRATEGIES, strategy_named
from ddlprof.recommender.target import LaunchUs, Rank, Target
from ddlprof.recommender.workload import Batch, Name, Workload

_FIRST_CAPABILITY = {"tf32": 8.0, "bf16": 8.0, "amp-bf16": 8.0, "fp8": 8.9}
"""The first compute capability with hardware for a precision; precisions that are not listed run on all GPUs. Older
GPUs emulate bf16 in fp32, which is slower than either, and run TF32 as fp32."""


@dataclass(frozen=True)
class Settings(Checked):
    """The settings of a training. None: as measured, or as counted where nothing was measured."""

    precision: Name | None = None
    """One of `ddlprof.recommender.compute.precisions.PRECISIONS`."""
    strategy: Name | None = None
    """One of `STRATEGIES`."""
    optimizer: Name | None = None
    """One of `ddlprof.model.operators.OPTIMIZER_UPDATES`."""
    grad_accum: Batch | None = None
    """Forward passes for one update."""
    checkpointing: Checkpointing | None = None
    """Whether activations are computed again in backward instead of kept; selective: all but results of products with
    weights."""
    compiled: bool | None = None
    """Whether torch.compile fuses operators."""
    channels_last: bool | None = None
    """Whether convolutions lay out their tensors with channels last (torch.channels_last)."""
    lora: Rank | None = None
    """The rank of adapters that are trained beside frozen weights (LoRA)."""
    qlora: Rank | None = None
    """The same beside weights held in four bits (QLoRA)."""
    lora_targets: Name | None = None
    """The layers that have adapters, by the ends of their names, such as `q_proj,v_proj`, or all-linear; None: as PEFT
    has it for models with such names."""
    lora_precision: Name | None = None
    """The precision of adapters; None: fp32 beside weights in 16 bit, as PEFT has it, and else as the job."""
    qlora_format: Name | None = None
    """How QLoRA holds its weights: a name of `ddlprof.recommender.compute.packing.FORMATS`; None: nf4."""
    lora_dropout: bool | None = None
    """Whether what adapters get is dropped out before; None: it is not, as PEFT has it."""
    host_launch_us: LaunchUs | None = None
    """Microseconds that the host takes to launch an operator. It is no setting of the job, and differs from none."""

    @property
    def deepspeed(self) -> int | None:
        """The stage of ZeRO by which DeepSpeed divides the job."""
        return strategy_named(self.strategy or "").deepspeed

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not None, by name: fields of `Target`."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def differences(self, workload: Workload) -> dict[str, tuple[Any, Any]]:
        """The settings that differ from the job, by name: the measured one (None: not known), and the one asked for."""
        before = measured_settings(workload)
        asked = {name: value for name, value in self.given.items() if name != "host_launch_us"}
        pairs = {name: (getattr(before, name), value) for name, value in asked.items()}
        return {name: (old, new) for name, (old, new) in pairs.items() if _plain(name, old) != _plain(name, new)}


def _plain(name: str, value: Any) -> Any:
    """The value in its usual spelling, where it has one."""
    try:
        if name == "precision":
            return precision_named(value)
        if name == "optimizer":
            optimizer = optimizer_named(value)
            return optimizer.name, optimizer.implementation
        return value
    except (AttributeError, PredictionError):  # not known, or a run's own word
        return value


def measured_settings(workload: Workload) -> Settings:
    """The settings of the job, by its first measurement and the operators of its step. Where neither has them, they are
    None; precision, strategy and accumulation are then fp32, ddp and 1."""
    measured, step = (workload.measurements[0] if workload.measurements else None), workload.step
    return Settings(
        precision=measured.precision if measured else step.precision if step else "fp32",
        strategy=measured.strategy if measured else "ddp",
        optimizer=step.optimizer if step else None,
        grad_accum=measured.grad_accum if measured else 1,
        checkpointing=step.checkpointing if step else None,
        compiled=step.compiled if step else None,
        channels_last=step.channels_last if step else None,
    )


def check_settings(asked: Settings | Target, gpu: Gpu | None = None) -> None:
    """Raises PredictionError for an unknown precision, strategy or optimizer, for a precision the GPU lacks, and for
    LoRA and QLoRA at once."""
    if asked.precision is not None:
        precision_named(asked.precision)
        if problem := lacking(gpu, asked.precision) if gpu else None:
            raise PredictionError(f"{problem}; choose another precision or another GPU")
    if asked.lora is not None and asked.qlora is not None:
        raise PredictionError("lora and qlora are two ways to train adapters: ask for one of them")
    of_adapters = asked.lora_targets or asked.lora_precision or asked.lora_dropout
    if asked.lora is None and asked.qlora is None and of_adapters is not None:
        raise PredictionError("lora targets, precision and dropout are those of adapters: ask for lora or qlora, too")
    if asked.qlora_format is not None:
        if asked.qlora is None:
            raise PredictionError("a qlora format is that of weights in four bits: ask for qlora, too")
        packing_named(asked.qlora_format)
    if asked.lora_precision is not None:
        precision_named(asked.lora_precision)
    if asked.optimizer is not None:
        optimizer_named(asked.optimizer)
    if asked.strategy is not None and asked.strategy not in STRATEGIES:
        raise PredictionError(f"strategy {asked.strategy!r} is not known; one of: {', '.join(STRATEGIES)}")


def lacking(gpu: Gpu, precision: str) -> str | None:
    """Why a GPU lacks a precision, such as `no bf16: T4 has none in hardware`; None: it has it, or nothing is known."""
    try:
        name = precision_named(precision)
    except PredictionError:  # a run's own word
        return None
    matrix = matrix_of(gpu)
    if matrix:
        has = {"fp8": matrix.fp8, "tf32": bool(gpu.tf32_tflops)}.get(name, True)
        return None if has else f"no {name}: {gpu.gpu_model} has none in hardware"
    if not gpu.compute_capability or float(gpu.compute_capability) >= _FIRST_CAPABILITY.get(name, 0.0):
        return None
    return f"no {name.removeprefix('amp-')}: {gpu.gpu_model} has none in hardware"
