"""A training job as the predictor knows it: its model, its work, and the step times measured so far.

None means not known; the estimate then says what was assumed instead. Fields are checked when a record is made, in
Python or from a file: `PredictionError` names the field and what is expected. The file is JSON with the fields of
`Workload`; `ddlprof features` writes one from a model alone, and it can be written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from ddlprof.base.reading import NOT_NEGATIVE, POSITIVE, Interval, Length, ReadingError, decode, parse_json, read_text
from ddlprof.model.operators import StepOperators
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.errors import Checked, PredictionError
from ddlprof.recommender.estimate import CARRIED
from ddlprof.recommender.layout import Layout

MAX_BATCH = 10**9
"""The largest batch accepted, in samples; the largest ever trained with have eight digits."""
_BYTES_PER_TENSOR = 1e6
"""The assumed bytes of a parameter tensor where tensors were not counted; in common models the mean is 0.1 to 5
million."""
_TENSORS_PER_LAYER = 2.7
_ROUNDING = 1.1
"""Rounding and averaging make the classes of a step add up to at most this times the step."""
MAX_FILE_BYTES = 4 * 2**20
"""The largest file that is read: enough for ten thousand measurements."""
Count = Annotated[int, Interval(0, 10**12)]
Amount = Annotated[float, NOT_NEGATIVE]
Bytes = Annotated[float, Interval(0, 1e18)]
Seconds = Annotated[float, Interval(0, 1e7)]
PositiveSeconds = Annotated[float, Interval(1e-6, 1e7)]
Name = Annotated[str, Length(0, 1000)]
Batch = Annotated[int, Interval(1, MAX_BATCH)]
Placement = Annotated[tuple[Annotated[int, Interval(1, 100_000)], ...], Length(1, 100_000)]
Share = Annotated[float, Interval(0, 1)]
Speed = Annotated[float, POSITIVE]
"""Any number above zero."""


@dataclass(frozen=True, kw_only=True)
class Measurement(Checked):
    """The mean steady step of the job on one placement. Times are seconds.

    A machine with neither `instance_type` nor `gpu_model` is a CPU, or unknown: its computation says nothing about
    GPUs, but its input, copies and other time are still carried over.
    """

    instance_type: Name | None = field(default=None, kw_only=False)
    """Name in the catalogue; None for a machine outside a cloud, described by `gpu_model`, `interconnect` and
    `network_gbps`."""
    placement: Placement
    """GPUs (on the CPU: processes) used on each node: (4,) four in one machine, (2, 2) two in each of two."""
    batch_per_gpu: Batch
    """The samples of one rank in one forward pass."""
    step_s: PositiveSeconds
    compute_s: PositiveSeconds | None = None
    data_s: Seconds | None = None
    exposed_comm_s: Seconds | None = None
    """The communication not hidden behind computation, including the wait for stragglers."""
    precision: Name = "fp32"
    strategy: Name = "ddp"
    """ddp, fsdp (parameters sharded) or zero (optimizer states or gradients sharded); no other can be predicted."""
    grad_accum: Batch = 1
    """Forward passes for one update."""
    gpu_model: Name | None = None
    interconnect: Name | None = None
    """The link between the GPUs of a machine: pcie3..5 or nvlink1..5, in any spelling that names one of them."""
    network_gbps: Speed | None = None
    """Gbit/s between two machines."""
    h2d_s: Seconds | None = None
    """Copies to the device for which computation waited."""
    other_s: Seconds | None = None
    """The rest of the step: logging, checkpoints, gaps of the host."""
    queued_share: Share | None = None
    """The share of its time in which the job was ready to run, but other processes had the processor."""
    layout: Layout | None = None
    """How the model was divided over the GPUs; None: by `strategy` alone."""
    reduced_in: Name | None = None
    """The type in which gradients were reduced (fp32, bf16, fp16), as FSDP's mixed precision or a compressing hook of
    DDP says; None: not known."""
    launch_us: Annotated[float, Interval(1e-3, 1e6)] | None = None
    """Microseconds that its host took to launch a small operator, as a run times it in the end."""
    cpu_model: Name | None = None
    """The processor that did."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts_s = sum(self.elsewhere_s, (self.compute_s or 0.0) + (self.exposed_comm_s or 0.0))
        if parts_s > _ROUNDING * self.step_s:
            raise PredictionError(
                f"measurement: its parts (compute_s, data_s, ...) are {parts_s:g} s together, step_s is {self.step_s:g}"
            )

    @property
    def elsewhere_s(self) -> tuple[float, ...]:
        """The seconds that were neither computation nor communication; classes that were not measured count as 0."""
        return (self.data_s or 0.0, *self.carried_s.values())

    @property
    def carried_s(self) -> dict[str, float]:
        """The seconds of the classes that predictions carry over, by name."""
        return {name: getattr(self, f"{name}_s") or 0.0 for name in CARRIED}


@dataclass(frozen=True)
class Recurring(Checked):
    """A recurring activity of a job besides its steps, such as evaluation."""

    seconds: Seconds
    """The mean duration of one occurrence."""
    every_samples: Annotated[float, Interval(1e-3, 1e18)] | None = None
    """The training samples from one occurrence to the next; None: it happens once in the job."""


@dataclass(frozen=True)
class JobFacts(Checked):
    """The time that a measured job took besides its steps. None: not observed."""

    start_up_s: Seconds | None = None
    """From the start of its processes to the first step, compilation included."""
    evaluation: Recurring | None = None
    checkpoint: Recurring | None = None
    epoch_start: Recurring | None = None
    """The wait for the first batch of an epoch, less an ordinary wait."""
    compute_s_per_sample: PositiveSeconds | None = None
    """The computation of one rank for a training sample: evaluations scale with it on another GPU."""
    compute_share: Share = 1.0
    """The share of computation in a step without communication; assumed for evaluations, too."""
    queued_share: Share | None = None
    """As in `Measurement`."""


@dataclass(frozen=True)
class Workload(Checked):
    """A training job, independent of where it runs."""

    name: Name
    layers: Count | None = None
    """Leaf modules with a weight of two or more dimensions (ResNet-50: 54)."""
    parameter_tensors: Count | None = None
    gradient_bytes: Bytes | None = None
    global_batch: Batch | None = None
    """The samples for one update, over all ranks."""
    flops_per_sample: Amount | None = None
    """FLOPs of the model, forward and backward, as the MFU counts them: a multiply-add as two, attention without regard
    to its mask, nothing that is computed again."""
    loader_cpu_s_per_sample: Seconds | None = None
    """Seconds of one CPU core that the loader spends on a sample."""
    loader_bytes_per_sample: Bytes | None = None
    """Bytes that the loader reads from storage for a sample."""
    peak_memory_bytes: Count | None = None
    """The peak memory of one device."""
    measurements: Sequence[Measurement] = ()
    kernels_per_step: Amount | None = None
    """Device kernels launched in one step of one rank."""
    buckets: Count | None = None
    """Gradient buckets reduced for one update."""
    assumed: Sequence[str] = ()
    """Assumptions in place of observations, one sentence each; they become part of `Estimate.basis`."""
    step: StepOperators | None = None
    job: JobFacts | None = None
    """The time besides steps; None where no whole job was measured."""
    loader_blocked_s_per_sample: Seconds | None = None
    """Seconds that loading a sample is blocked on storage or network."""
    loader_workers: Count | None = None
    """DataLoader workers of one rank; 0: the training loop loads."""
    tokens_per_sample: Count | None = None
    """Tokens in a sample of text; None: not known, or the samples are not text."""
    transformer: Transformer | None = None
    """The sizes of the model, if it is a transformer: layouts over many GPUs need them."""
    software: Name | None = None
    """What trains it under a layout: megatron, nanotron, torchtitan, ... (`recommender.layouts.coefficients`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None:
            try:
                self.step.require_consistent()
            except ReadingError as error:
                raise PredictionError(f"workload: step.{error}") from None

    @property
    def tensors(self) -> float:
        """The number of parameter tensors, counted or assumed."""
        if self.parameter_tensors is not None:
            return self.parameter_tensors
        if self.layers is not None:
            return _TENSORS_PER_LAYER * self.layers
        return (self.gradient_bytes or 0.0) / _BYTES_PER_TENSOR


def workload_text(workload: Workload) -> str:
    """The workload as the JSON text of its file."""
    return json.dumps(asdict(workload), indent=1, allow_nan=False) + "\n"


def read_workload(path: Path) -> Workload:
    """Reads a workload file. Raises PredictionError, naming file and field, if it cannot be read or is not valid."""
    try:
        text = read_text(path, MAX_FILE_BYTES)
    except ReadingError as error:
        raise PredictionError(f"{path}: {error}") from None
    try:
        return decode(Workload, parse_json(text))
    except ReadingError as error:
        raise PredictionError(f"{path}: {error}; make one with: ddlprof features MODULE:FACTORY -o FILE") from None
