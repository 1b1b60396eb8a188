"""What a predictor knows of a training job: its model, its work, and the step times measured so far.

None means not known; whoever predicts says what was assumed instead. Fields are checked when a record is made, whether
by Python code or from a file: `PredictionError` names the field and what is expected. The file is JSON with the fields
of `Workload`; `ddlprof features` writes one from a model alone, and it can be written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Annotated

from ddlprof.base.reading import NOT_NEGATIVE, POSITIVE, Length, Range, ReadingError, decode, parse_json, read_text
from ddlprof.model.operators import StepOperators
from recommender.errors import PredictionError, checked
from recommender.estimate import CARRIED

MAX_BATCH = 10**9
"""The largest batch, in samples; the largest that anybody trained with have eight digits."""
_ROUNDED = 1.1
"""The classes of a step are less than this times the step, however they were rounded or averaged."""
MAX_FILE_BYTES = 4 * 2**20
"""The largest file that is read: enough for ten thousand measurements."""
Count = Annotated[int, Range(0, 10**12)]
Amount = Annotated[float, NOT_NEGATIVE]
Bytes = Annotated[float, Range(0, 1e18)]
Seconds = Annotated[float, Range(0, 1e7)]
PositiveSeconds = Annotated[float, Range(1e-6, 1e7)]
Name = Annotated[str, Length(0, 1000)]
Batch = Annotated[int, Range(1, MAX_BATCH)]
Placement = Annotated[tuple[Annotated[int, Range(1, 100_000)], ...], Length(1, 100_000)]
Share = Annotated[float, Range(0, 1)]
Speed = Annotated[float, POSITIVE]
"""A rate, or anything else above zero."""


@dataclass(frozen=True)
class Measurement:
    """The mean steady step of the job on one placement. Times are seconds.

    Of a machine with neither `instance_type` nor `gpu_model` (a CPU, or not known) the step says nothing of computing
    on GPUs; input, copies and other time are carried over all the same.
    """

    instance_type: Name | None = None
    """Name in the catalogue; None for a machine outside a cloud, described by `gpu_model`, `interconnect` and
    `network_gbps`."""
    _: KW_ONLY
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
    """ddp, fsdp (parameters are sharded) or zero (optimizer states or gradients are); no other can be predicted."""
    grad_accum: Batch = 1
    """The forward passes for one update."""
    gpu_model: Name | None = None
    interconnect: Name | None = None
    """The link between the GPUs of a machine: pcie3..5 or nvlink1..5, in any spelling that names one of them."""
    network_gbps: Speed | None = None
    """The Gbit/s between two machines."""
    h2d_s: Seconds | None = None
    """Copies to the device that computation waited for."""
    other_s: Seconds | None = None
    """What no other class claims: logging, checkpoints, gaps of the host."""
    queued_share: Share | None = None
    """The share of its time that the job was ready to run and waited for a processor, which other work had."""

    def __post_init__(self) -> None:
        checked(self)
        parts_s = sum(self.elsewhere_s, (self.compute_s or 0.0) + (self.exposed_comm_s or 0.0))
        if parts_s > _ROUNDED * self.step_s:
            raise PredictionError(
                f"measurement: its parts (compute_s, data_s, ...) are {parts_s:g} s together, step_s is {self.step_s:g}"
            )

    @property
    def elsewhere_s(self) -> tuple[float, ...]:
        """What was neither computation nor communication, as far as it was measured."""
        return (self.data_s or 0.0, *self.carried_s.values())

    @property
    def carried_s(self) -> dict[str, float]:
        """The classes that predictions take as they are here."""
        return {name: getattr(self, f"{name}_s") or 0.0 for name in CARRIED}


@dataclass(frozen=True)
class Recurring:
    """Something that a job does again and again besides its steps."""

    seconds: Seconds
    """The mean of one time."""
    every_samples: Annotated[float, Range(1e-3, 1e18)] | None = None
    """The samples trained with from one time to the next; None: it is counted once."""

    def __post_init__(self) -> None:
        checked(self)


@dataclass(frozen=True)
class JobFacts:
    """What a measured job took besides its steps. None: not seen."""

    start_up_s: Seconds | None = None
    """From the start of its processes to the first step, with compilation."""
    evaluation: Recurring | None = None
    checkpoint: Recurring | None = None
    epoch_start: Recurring | None = None
    """The wait for the first batch of an epoch beyond an ordinary wait."""
    compute_s_per_sample: PositiveSeconds | None = None
    """What one rank computed for a sample of training: evaluations on another GPU change as this does."""
    compute_share: Share = 1.0
    """The share of a step without communication that was computing, taken for that of an evaluation, too."""
    queued_share: Share | None = None
    """As in `Measurement`."""

    def __post_init__(self) -> None:
        checked(self)


@dataclass(frozen=True)
class Workload:
    """A training job, independent of where it runs."""

    name: Name
    layers: Count | None = None
    """Leaf modules with a weight of two or more dimensions (ResNet-50: 54)."""
    parameter_tensors: Count | None = None
    gradient_bytes: Bytes | None = None
    global_batch: Batch | None = None
    """The samples for one update, over all ranks."""
    flops_per_sample: Amount | None = None
    """The FLOPs of forward and backward, a multiply-add counted as two."""
    loader_cpu_s_per_sample: Seconds | None = None
    """Seconds of one CPU core that the loader spends on a sample."""
    loader_bytes_per_sample: Bytes | None = None
    """Bytes read from storage for a sample."""
    peak_memory_bytes: Count | None = None
    """The peak memory of one device."""
    measurements: Sequence[Measurement] = ()
    kernels_per_step: Amount | None = None
    """Device kernels launched in one step of one rank."""
    buckets: Count | None = None
    """Reductions of gradients for one update."""
    assumed: Sequence[str] = ()
    """What was not seen but taken for granted, one sentence each; every prediction says so too."""
    step: StepOperators | None = None
    """The operators of one step."""
    job: JobFacts | None = None
    """What the job takes besides steps; None where no whole job was measured."""
    loader_blocked_s_per_sample: Seconds | None = None
    """Seconds that whoever loads a sample is blocked, on storage or network."""
    loader_workers: Count | None = None
    """The workers that load for one rank; 0: the training loop loads."""
    tokens_per_sample: Count | None = None
    """The tokens of a sample of text; None: not known, or the samples are no text."""

    def __post_init__(self) -> None:
        checked(self)


def workload_text(workload: Workload) -> str:
    """The text of the file."""
    return json.dumps(asdict(workload), indent=1, allow_nan=False) + "\n"


def write_workload(workload: Workload, path: Path) -> None:
    """Replaces the file. Raises PredictionError where it cannot be written."""
    try:
        path.write_text(workload_text(workload), encoding="utf-8")
    except OSError as error:
        raise PredictionError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_workload(path: Path) -> Workload:
    """Raises PredictionError, naming the file and the field, if it cannot be read or is not a workload."""
    try:
        text = read_text(path, MAX_FILE_BYTES)
    except ReadingError as error:
        raise PredictionError(f"{path}: {error}") from None
    try:
        return decode(Workload, parse_json(text))
    except ReadingError as error:
        raise PredictionError(f"{path}: {error}; make one with: ddlprof features MODULE:FACTORY -o FILE") from None
