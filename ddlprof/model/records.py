"""The records of a run: what is written for each step, and flags and column names that all packages share."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from typing import Annotated

from ddlprof.model.annotations import Shared, SharedAs, StepColumn

SCHEMA_VERSION = 1
"""The schema of the manifest and of JSON reports."""

RANK_SCHEMA_VERSION = 3
"""The schema of a rank's files."""

DEVICE_CLOCK = "device"
"""The value of `RankHeader.clock` if the classes are on a device's timeline."""

MISSING = -1
"""Stands for None in columns of integers, as no time or count is negative."""


class Flag(IntFlag):
    """What is unusual about a step. The value is stored; the lower-case name is shown."""

    WARMUP = 1
    EPOCH_START = 2
    TRACED = 4
    EVALUATION = 8
    CHECKPOINT = 16
    SKIPPED = 32
    COMPILE = 64

    def text(self) -> str:
        """The flags as lower-case names separated by `;`, as in `steps.csv`."""
        return ";".join(f.name.lower() for f in Flag if f in self and f.name)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of one rank. Times are integer nanoseconds, so that the classes add up exactly.

    None: not measured. 0: measured as zero, or a class that cannot occur (no device, one process). The classes
    (`ddlprof.model.classes`) add up to `step_ns`; unmeasured ones count as 0.
    """

    step: Annotated[Shared[int], StepColumn("the number of the step in its attempt, from 0")]
    start_ns: Annotated[Shared[int], StepColumn("when it began, counted from the start of the run")]
    """In the record from the rank's origin (`RankHeader.origin_ns`)."""
    step_ns: Shared[int]
    compute_ns: Shared[int | None]
    compute_forward_ns: Shared[int | None] = field(default=None, kw_only=True)
    compute_backward_ns: Shared[int | None] = field(default=None, kw_only=True)
    compute_optimizer_ns: Shared[int | None] = field(default=None, kw_only=True)
    data_ns: Shared[int | None]
    data_fetch_ns: Shared[int | None]
    data_prep_ns: Shared[int | None]
    h2d_ns: Shared[int | None]
    comm_ns: Shared[int | None]
    other_ns: Shared[int]
    rollout_ns: Shared[int | None] = field(default=None, kw_only=True)
    microbatches: Annotated[Shared[int], StepColumn("backward passes whose gradients the update used")]
    samples: Annotated[Shared[int | None], StepColumn("samples of its batches", empty="they could not be counted")]
    peak_memory_bytes: Annotated[
        Shared[int | None],
        StepColumn("peak so far of the rank's memory: allocated on its device, or resident on a CPU", empty="not read"),
    ] = field(default=None, kw_only=True)
    device_lag_ns: Shared[int | None] = field(default=None, kw_only=True)
    """How far the device was behind the host at most in the step: from the record of an event to its passing, in ns.

    If this is nearly zero, the device waits for the host. None on CPUs, and if launches wait for their kernels
    (CUDA_LAUNCH_BLOCKING).
    """
    flags: Annotated[Shared[int], StepColumn("what is unusual about it, separated by `;`", empty="nothing is")]
    signature: Shared[int] = -1
    """The number of the step's `Signature`; -1 if none was recorded."""
    first_seqs: Shared[tuple[int, ...]] = ()
    """The sequence number of the step's first collective in each group, in the signature's order of groups."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Exact sums over `steps` measured steps that were not kept as rows. None: not measured in each of them."""

    first_step: Shared[int]
    steps: Shared[int]
    step_ns: Shared[int]
    compute_ns: Shared[int | None]
    data_ns: Shared[int | None]
    data_fetch_ns: Shared[int | None]
    data_prep_ns: Shared[int | None]
    h2d_ns: Shared[int | None]
    comm_ns: Shared[int | None]
    other_ns: Shared[int]
    microbatches: Shared[int]
    samples: Shared[int | None]
    flags: Shared[int] = 0
    """The flags of each of these steps."""


@dataclass(frozen=True, slots=True)
class Stride:
    """From this step on, of steps without a flag only those with a multiple of `stride` are kept as rows."""

    first_step: Shared[int]
    stride: Shared[int]


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the training begins: the updates of another optimizer end the steps. Written once there are two."""

    step: Shared[int]
    """The first step of the phase."""
    optimizer: Annotated[str, SharedAs("optimizer")]
    """The class of the optimizer."""
    parameters: Shared[int]
    """The number of parameters that it updates."""
    model: Annotated[str | None, SharedAs("model")] = None
    """The class of the model that has most of them; None: not known."""


@dataclass(frozen=True, slots=True)
class JobSpan:
    """Something that the job did besides training steps. Spans may overlap, and may lie inside or outside of steps."""

    what: Annotated[str, SharedAs("span")]
    """One of `SPANS`."""
    start_ns: Shared[int]
    """The start, relative to the rank's origin."""
    duration_ns: Shared[int]


@dataclass(frozen=True, slots=True)
class CollectiveShape:
    """The properties of the i-th collective of a step that do not change from step to step."""

    group: Annotated[str, SharedAs("group")]
    """The group; for point-to-point operations with the channel, see `ddlprof.collect.hooks.collectives`."""
    op: Annotated[str, SharedAs("operation")]
    bytes: Shared[int]
    ranks: Shared[int]
    root: Shared[int | None] = None
    """The job's rank number of the root, or of a message's other end. None: none, or not recorded."""
    issuer: int = -1
    """The number of the source line of its issuer, -1 where not known. It is not written here: see
    `ddlprof.model.issuers`."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Which dimension of the parallel layout a process group belongs to, of `ddlprof.model.dimensions`.

    Written when it is known, and again where more becomes known; the last line of a group counts.
    """

    group: Annotated[str, SharedAs("group")]
    dimension: Annotated[str, SharedAs("dimension")]
    """The dimension of its collectives; empty if unknown."""
    exchanges: Annotated[str, SharedAs("dimension")] = ""
    """The dimension of its all-to-alls and messages, which no wrapper of data parallelism issues; empty if unknown."""
    ranks: Shared[int] = 0
    """The number of ranks in the group; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """The times of one collective, in microseconds since the start of its step; 16 bytes on disk.

    `ready_us`: this rank issued it. `end_us`: it was complete. `need_us`: computation began to wait for it; `NEVER` if
    it did not wait. `exposed_us`: the part of the step's exposed communication that it caused.
    """

    ready_us: Shared[int]
    end_us: Shared[int]
    need_us: Shared[int]
    exposed_us: Shared[int]


NEVER = 0xFFFFFFFF

MESSAGES = ("send", "recv", "recv_any_source")
"""The operations that are one side of a point-to-point transfer."""


def is_all_to_all(op: str) -> bool:
    """Whether each rank sends a part of its own to every other, in sizes that may differ between ranks and steps."""
    return op.startswith("alltoall")


EVALUATION, CHECKPOINT, COMPILATION, PROFILING = SPANS = ("evaluation", "checkpoint", "compilation", "profiling")
"""The kinds of `JobSpan`. `profiling` is work of ddlprof for which the training waits."""


@dataclass(frozen=True, slots=True)
class ContextRow:
    """Counters of host and device, about once a second. No class of a step depends on them. None: not available."""

    time_ns: Shared[int]
    cpu_percent: Shared[float | None]
    memory_used_bytes: Shared[int | None]
    process_rss_bytes: Shared[int | None]
    gpu_percent: Shared[float | None]
    gpu_memory_bytes: Shared[int | None]
    gpu_power_w: Shared[float | None]
    process_peak_rss_bytes: Shared[int | None] = None
    """The peak so far; so in the next two fields."""
    gpu_peak_allocated_bytes: Shared[int | None] = None
    """The memory of this process's tensors, on the device on which steps are timed."""
    gpu_peak_reserved_bytes: Shared[int | None] = None
    """The memory that torch's allocator holds on that device."""
    process_private_bytes: Shared[int | None] = None
    """The resident memory of the process without mapped files and memory shared with others."""
    gpu_clock_mhz: Shared[float | None] = None
    """The clock of the device's multiprocessors now."""
    gpu_temperature_c: Shared[float | None] = None
    gpu_throttle_reasons: Shared[int | None] = None
    """NVML's bits for the reasons that hold the clock down now (`nvmlClocksThrottleReason...`)."""
    gpu_power_limit_w: Shared[float | None] = None
    process_queued_ns: Shared[int | None] = None
    """The time so far for which the main thread was ready to run and waited for a processor."""
    gpu_energy_j: Shared[float | None] = None
    """The energy that the device has taken so far, from an arbitrary beginning; so in the next field."""
    host_energy_j: Shared[float | None] = None
    """The energy of the machine's processors and their memory."""
    job_cpu_ns: Shared[int | None] = None
    """The processor time so far of all threads of the process and of its children, such as a loader's workers."""
    workers_copied_bytes: Shared[int | None] = None
    """The memory that its children have copied of what they share with the process, since they were first seen."""
    workers_new_bytes: Shared[int | None] = None
    """The memory that its living children have taken since they were first seen, without what they copied so."""


@dataclass(frozen=True, slots=True)
class WindowRow:
    """The device's activity in a profiler window. In the rest of `window_ns` it was idle."""

    first_update: Shared[int]
    updates: Shared[int]
    window_ns: Shared[int]
    work_ns: Shared[int]
    """The time in which kernels or copies ran, other than communication."""
    comm_only_ns: Shared[int]
    """The time in which only communication kernels ran."""
    kernels: Shared[int | None] = None
    """The number of kernels and copies launched, other than communication. None: not counted."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One measurement of the calibration: a collective among the ranks of one machine before the training."""

    ranks: Shared[int]
    bytes: Shared[int]
    """The bytes of the whole tensor, on the side where a rank has all of it."""
    duration_ns: Shared[int]
    """The median duration of several collectives."""
    op: Annotated[str, SharedAs("operation")] = "allreduce"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How far the monotonic clock of a rank on another machine was ahead of this rank's when the job began."""

    rank: Shared[int]
    least_ns: Shared[int]
    greatest_ns: Shared[int]


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead of ddlprof itself, measured inside the run; cumulative.

    `hook_ns`: processor time of hooks during `hook_steps` steps of the training thread, estimated from a sample.
    `helper_cpu_ns`: processor time of the helper thread during `wall_ns`.
    """

    hook_ns: Shared[int]
    hook_steps: Shared[int]
    helper_cpu_ns: Shared[int]
    wall_ns: Shared[int]


@dataclass(frozen=True, slots=True)
class LoaderCost:
    """The cost of making the batches of the training, in whatever process; cumulative.

    `step`: the step under way when this was written.
    """

    step: Shared[int]
    samples: Shared[int]
    cpu_ns: Shared[int]
    """The processor time of all threads."""
    asked_bytes: Shared[int | None]
    """The bytes that read() returned, from storage or the page cache, but not from sockets. None: not counted."""
    storage_bytes: Shared[int | None]
    """The bytes that came from storage, including mapped files and read-ahead. None: not counted."""
    blocked_ns: Shared[int | None] = None
    """The time for which their process was blocked, neither computing nor waiting for a processor. None: not
    counted."""


@dataclass(frozen=True, slots=True)
class CollectorPauses:
    """The pauses of the garbage collector so far, in whatever thread; cumulative.

    `time_ns`: when this was written, relative to the rank's origin. `full`: the collections of all generations.
    """

    time_ns: Shared[int]
    number: Shared[int]
    total_ns: Shared[int]
    longest_ns: Shared[int]
    full: Shared[int]


@dataclass(frozen=True, slots=True)
class RecompileReason:
    """Why torch.compile compiled a function again, in its own words, when that has changed."""

    kind: Shared[int]
    """The number of the kind of reason, from 0 in the order in which they came."""
    reason: Annotated[str, SharedAs("reason")]


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place at which torch.compile breaks a graph, with its reason, in its own words."""

    number: Shared[int]
    """From 0, in the order in which they came."""
    place: Annotated[str, SharedAs("place")]
    reason: Annotated[str, SharedAs("reason")]


@dataclass(frozen=True, slots=True)
class FirstBatches:
    """What tells whether ranks got the same first batches of their loaders."""

    number: Shared[int]
    """Of batches."""
    digest: int
    """Of their sizes and first values; equal for equal ones."""


@dataclass(frozen=True, slots=True)
class LossValue:
    """The loss on which `backward` was called, recorded now and then (see `ddlprof.collect.recorder`)."""

    update: int
    """The number of updates before it."""
    value: float | None
    """The loss; None if it is not finite."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The number of readings of one kind that have failed so far.

    `one`, `many`: the words after the number in the report.
    """

    source: Annotated[str, SharedAs("source")]
    one: Annotated[str, SharedAs("one reading")]
    many: Annotated[str, SharedAs("many readings")]
    count: Shared[int]
    reason: Annotated[str, SharedAs("reason")]
    """The reason for the first failure."""


@dataclass(frozen=True, slots=True)
class End:
    """How a rank ended. `status`: ok, exception, exit, interrupt or stopped (`--stop-after`)."""

    status: Annotated[str, SharedAs("status")]
    exit_code: Shared[int]
    time_ns: Shared[int]


@dataclass(frozen=True, slots=True)
class Signature:
    """The collectives of a step in their order. Written once and referred to by number."""

    number: Shared[int]
    shapes: Shared[tuple[CollectiveShape, ...]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Stack samples taken in the time `other` of a step."""

    step: Shared[int]
    counts: Shared[tuple[int, ...]] = ()
    """The number of a source line, the number of its samples, the next line, ..."""

    def __post_init__(self) -> None:
        if len(self.counts) % 2:
            raise ValueError("a source line without the number of its samples")


@dataclass(frozen=True, slots=True)
class ComputeSamples(Samples):
    """Stack samples taken while a step computed: in its forwards and losses, and in loops of optimizers."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was not measured, and why. `source`: the hook or file that it concerns."""

    source: Annotated[str, SharedAs("source")]
    message: Annotated[str, SharedAs("reason")]


@dataclass(frozen=True, slots=True)
class Flush:
    """Ends a part that was written to a rank's files at once, with checksums of it."""

    text_crc32: int
    """The checksum of the lines since the last `Flush`."""


@dataclass(frozen=True, slots=True)
class RankHeader:
    """The first line of a rank's file, which also names the columns (see `ddlprof.model.codec`)."""

    rank: Shared[int]
    world_size: Shared[int]
    local_rank: Shared[int]
    attempt: Shared[int]
    host: Annotated[str, SharedAs("host")]
    node_id: Annotated[str, SharedAs("machine id")]
    """The identity of the machine, compared among ranks only (see `ddlprof.collect.job.environment`)."""
    pid: Annotated[int, SharedAs("nothing")]
    device: Annotated[str, SharedAs("device")]
    """The device: `cpu`, or the accelerator's name."""
    clock: Annotated[str, SharedAs("clock")]
    """The clock of the classes: `host`, or `device` if they are on the device's timeline."""
    origin_ns: Annotated[int, SharedAs("monotonic time")]
    """The monotonic clock at the rank's start, in ns. Every `start_ns` and `time_ns` is relative to it."""
    origin_unix_ns: Annotated[int, SharedAs("unix time")]
    """The unix time at the same moment, in ns."""
    job_id: Annotated[str, SharedAs("job id")] = ""
    """The job's id, as in the manifest; empty if rank 0 did not tell it."""
    launcher: str = ""
    """The process and machine that started this rank, if it was torch's elastic launcher; else empty."""
    age_ns: Shared[int | None] = None
    """How long the process had run at its origin, in ns; None if unknown, or if it had done other work before this
    job."""
    spans: Shared[bool] = False
    """Whether what the job did besides steps was recorded (`JobSpan`)."""
    schema: Shared[int] = RANK_SCHEMA_VERSION


GOOD_ENDS = ("ok", "stopped")
"""The statuses of ranks whose script ended as it should, or was measured for as long as it should be."""
# Messages of notes on which the report says more.
LEFT_OUT = "with impossible values left out"  # of steps whose classes do not add up
NO_TORCH = "the script ended, and torch was never imported"
NONE_THAT_STEPPED = "is none of those that stepped"
NO_BACKWARD = "the script ended; forwards were seen, but no backward and no update of an optimizer of torch"
