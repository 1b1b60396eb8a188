"""The manifest: what was run, on which machine, and what a predictor needs to know of the job.

Rank 0 writes it at the start and again, atomically, as more becomes known. It contains no environment and no argument
values that look like credentials.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ddlprof.base.errors import ReadingError
from ddlprof.base.files import replace_whole
from ddlprof.model.annotations import Shared, SharedAs
from ddlprof.model.records import SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"
OPERATORS_NAME = "operators.json"
"""The file beside it: see `ddlprof.model.operators.OperatorsFile`."""
MAX_MANIFEST_BYTES = 4 << 20
"""The most bytes of a manifest: twice the longest command line of Linux."""
PROFILER, TRACEMALLOC, BLOCKING, DETAIL = DEBUG_MODES = (
    "torch.profiler",
    "tracemalloc",
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_DISTRIBUTED_DEBUG",
)
"""What is meant for debugging, and slows a training down as long as it is on."""
SUBNORMAL_GRADIENTS, SUBNORMAL_STATES = "gradients", "states of the optimizer"
"""What is subnormal where backwards alone are slow, or updates alone."""
IMPORTED = "import:"
"""The beginning of the job id of runs that were made from traces."""


@dataclass
class ModelFacts:
    """Counts of the trained model, or of all models trained together (as in a GAN); None: not known.

    `layers`: leaf modules with a weight of two or more dimensions (ResNet-50: 54). `parameter_tensors` and
    `gradient_bytes` cover the parameters that require gradients; with tensor parallelism a rank's share of their bytes,
    with pipeline parallelism the stage of rank 0. `forward_flops_per_sample` counts a multiply-add as two, for one
    step, and covers the whole layer where ranks share it.
    """

    name: Annotated[str | None, SharedAs("model")] = None
    layers: Shared[int | None] = None
    parameter_tensors: Shared[int | None] = None
    parameters: Shared[int | None] = None
    gradient_bytes: Shared[int | None] = None
    forward_flops_per_sample: Shared[float | None] = None
    backward_flops_per_sample: Shared[float | None] = None
    compiled: Shared[bool | None] = None
    channels_last: bool | None = None
    """Whether weights of convolutions lie in memory with channels last."""
    graph_nodes: Shared[int | None] = None
    """The nodes of the autograd graph of one micro-batch: about as many operators run in its forward."""
    recomputed_flops_per_sample: Shared[float | None] = None
    """The part of `backward_flops_per_sample` that does a forward again, under activation checkpointing."""
    needless_share: Shared[float | None] = None
    """The share of the operations that compute gradients which no optimizer uses."""
    needless_parameters: Shared[int | None] = None
    """The number of parameters with such gradients that nothing updates."""
    dropped_gradients: Shared[int | None] = None
    """The number of parameters with such gradients that are set to zero before their optimizer uses them."""
    repeated_share: Shared[float | None] = None
    """The share of the operations of backward that it goes through again, for another loss of the same graph."""
    sparse_share: Shared[float | None] = None
    """The share of the operations by a matrix without gradients that is zero but for `SPARSE_NONZERO`."""
    sparse_nonzero: Shared[float | None] = None
    """The largest share of the numbers of such a matrix that are not zero."""
    frozen: Shared[bool | None] = None
    """Whether some of forward is for weights that are not trained: frozen parameters, or a teacher."""


@dataclass
class TrainingFacts:
    """How the job trains; None: not known."""

    optimizer: Annotated[str | None, SharedAs("optimizer")] = None
    batch_per_rank: Shared[int | None] = None
    global_batch: Shared[int | None] = None
    micro_batches: Shared[int | None] = None
    precision: Annotated[str | None, SharedAs("precision")] = None
    """The precision: fp32, tf32, bf16, fp16 or, for autocast, amp-bf16, amp-fp16."""
    strategy: Annotated[str | None, SharedAs("strategy")] = None
    """none, ddp, fsdp, zero, tp (tensor parallelism), pp (pipeline parallelism), cp (context parallelism), ep (expert
    parallelism), dp (torch.nn.DataParallel), or several joined by +: ddp+fsdp (hybrid sharding), fsdp+tp. `other`: a
    division among ranks that was not recognised."""
    backend: Annotated[str | None, SharedAs("backend")] = None
    dataset_samples: Shared[int | None] = None
    loader_workers: Shared[int | None] = None
    pin_memory: Shared[bool | None] = None
    persistent_workers: Shared[bool | None] = None
    prefetch_factor: Shared[int | None] = None
    in_order: Shared[bool | None] = None
    """Whether the loader gives batches in the order of its sampler, a slow one before those behind it."""
    worker_start: str | None = None
    """How the loader's workers are started: fork, spawn or forkserver."""
    whole_batches: Shared[bool | None] = None
    """Whether the data set gives whole batches, by a list of indices, so that none is joined of samples."""
    repeated_batches: Shared[bool | None] = None
    """Whether each worker of the loader gives all samples of an iterable data set, by the first batches."""
    repeated_orders: Shared[int | None] = None
    """The number of epochs in which a DistributedSampler drew the order of the epoch before; None: no such sampler."""
    batch_tensors: Shared[int | None] = None
    """The number of tensors in a batch of the loader; so in the next field."""
    batch_bytes: Shared[int | None] = None
    comm_hook: Annotated[str | None, SharedAs("communication hook")] = None
    """The name of DDP's communication hook; empty if there is none."""
    reduced_in: Annotated[str | None, SharedAs("precision")] = None
    """The type in which gradients are reduced, where the mixed precision of FSDP or DDP or a compressing hook says it:
    fp32, bf16, fp16."""
    peak_device_memory_bytes: Shared[int | None] = None
    peak_process_memory_bytes: Shared[int | None] = None
    zero_stage: Shared[int | None] = None
    """What the data-parallel ranks divide. 1: the optimizer's states; 2: gradients as well; 3: parameters as well."""
    data_parallel_ranks: Shared[int | None] = None
    """The number of ranks with samples of their own; None: all."""
    cpu_threads: Shared[int | None] = None
    """The number of threads that torch computes with on processors, for each rank."""
    tokens_per_sample: Shared[float | None] = None
    """The mean length of a sample of text in the first steps, padding included."""
    padding_share: Shared[float | None] = None
    """The share of these tokens that is padding."""
    ignored_share: Shared[float | None] = None
    """The share of the labels of tokens in the first batches that losses leave out (-100); None: no such label."""
    unused_iterations: Shared[int | None] = None
    """The number of iterations looked at in which DDP searched for unused parameters and found none; None: it does not
    search, or has found some."""
    buffers_change: Shared[bool | None] = None
    """Whether buffers that DDP broadcasts change, other than the statistics of normalisation."""
    batch_statistics: Shared[bool | None] = None
    """Whether such statistics are among the buffers that DDP broadcasts."""
    anomaly_share: Shared[float | None] = None
    """The share of looks during the training in which autograd's anomaly mode was on."""
    interpreter_hook: str | None = None
    """What the interpreter calls for each `line` or `call` of Python in the training thread, such as `line: pydevd` of
    a debugger or `call: cProfile`; empty: nothing."""
    debug_modes: str | None = None
    """Those of `DEBUG_MODES` that were on at most looks and at the last one, joined by commas; empty: none."""
    deterministic: Shared[bool | None] = None
    """Whether only deterministic algorithms were allowed at the last look."""
    optimizer_loops: Shared[bool | None] = None
    """Whether the update of the largest optimizer goes through its parameters one after the other, in Python."""
    optimizer_switch: str | None = None
    """The argument of that optimizer that ends this: `fused` or `foreach`; empty if it has none."""
    optimizer_tensors: Shared[int | None] = None
    """The number of parameters that it updates."""
    optimizer_history: Shared[int | None] = None
    """How many steps and gradients it keeps, to go through them in each iteration (LBFGS)."""
    passes_in_update: Shared[int | None] = None
    """The most backward passes inside of an update, by a closure that the optimizer calls: several by LBFGS."""
    new_optimizers: Shared[float | None] = None
    """The share of the updates for which an optimizer was made anew."""
    kept_graphs: Shared[int | None] = None
    """The number of first steps whose autograd graphs still lived at the last look; None: nobody looked."""
    retained_graphs: Shared[bool | None] = None
    """Whether the only backward of each first step kept its graph (`retain_graph=True`), which was let go later."""
    evaluates_with_gradients: Shared[bool | None] = None
    """Whether the trained model was evaluated with gradients; None: not known."""
    evaluated_samples: Shared[int | None] = None
    """The most samples of a forward without gradients that evaluated the trained model; None: not known."""
    subnormal_share: Shared[float | None] = None
    """The share of numbers near the smallest float32 at the last look, of a training on processors."""
    subnormal_of: str | None = None
    """What they are numbers of: gradients, parameters, states of the optimizer; empty: of nothing."""
    subnormal_times: Shared[float | None] = None
    """How many times as long products of all gradients (parameters, states) took as those of other numbers."""
    launch_us: float | None = None
    """Microseconds that the host of rank 0 takes to launch a small operator, timed when the training had ended."""

    @property
    def calls_again(self) -> bool:
        """Whether an update calls for several backward passes, as LBFGS does."""
        return (self.passes_in_update or 0) > 1


@dataclass
class LayoutFacts:
    """The degrees of parallelism: the number of ranks along each dimension of the job's layout.

    All but `expert` multiply to the number of ranks; experts lie inside the others.
    """

    tensor: Shared[int] = 1
    pipeline: Shared[int] = 1
    context: Shared[int] = 1
    expert: Shared[int] = 1
    data_shard: Shared[int] = 1
    """The ranks among which FSDP or ZeRO divides the states of one copy of the model."""
    data_replicate: Shared[int] = 1
    """The number of such copies; with DDP, the number of ranks with samples of their own."""

    @property
    def is_data_only(self) -> bool:
        """Whether data parallelism, with context or expert parallelism inside it, is all that divides the work."""
        return self.tensor == self.pipeline == 1 and self.data_shard * self.data_replicate > 1

    def text(self, strategy: str | None) -> str:
        """`tp2 x fsdp4`: the dimensions with more than one rank."""
        return " x ".join(f"{name}{degree}" for name, degree in self._named(strategy or "") if degree > 1)

    def _named(self, strategy: str) -> tuple[tuple[str, int], ...]:
        return (
            ("tp", self.tensor), ("pp", self.pipeline), ("cp", self.context), ("ep", self.expert),
            ("zero" if "zero" in strategy else "fsdp", self.data_shard),
            ("ddp" if "ddp" in strategy else "dp", self.data_replicate),
        )  # fmt: skip


@dataclass
class Manifest:
    """The file `manifest.json` of a run directory."""

    name: Annotated[str, SharedAs("job")]
    """The short name of the job: the script's file name without its ending, or the module."""
    argv: Annotated[list[str], SharedAs("arguments")]
    """The script and its arguments, credentials removed."""
    job_id: Annotated[str, SharedAs("job id")]
    """The job's id, equal for all processes and restarts of one job."""
    created_unix_ns: Annotated[int, SharedAs("unix time")]
    world_size: Shared[int]
    origin_unix_ns: Annotated[int, SharedAs("unix time")]
    """Rank 0's unix time in ns from which `start_s` in reports counts."""
    working_directory: str | None = None
    versions: Annotated[dict[str, str], SharedAs("versions")] = field(default_factory=dict)
    host: Annotated[dict[str, Any], SharedAs("machine")] = field(default_factory=dict)
    """platform, instance_type, cpu model, cores, memory_bytes, gpus, ..."""
    model: Shared[ModelFacts] = field(default_factory=ModelFacts)
    training: Shared[TrainingFacts] = field(default_factory=TrainingFacts)
    layout: Shared[LayoutFacts | None] = None
    """None: nothing is divided among the ranks, or it is not known how."""
    calibration: Annotated[dict[str, Any] | None, SharedAs("calibration")] = None
    schema: int = SCHEMA_VERSION

    @property
    def is_imported(self) -> bool:
        """Whether the run was made from traces.

        On a device, classes are then those of its kernels, and idle time is `other`.
        """
        return self.job_id.startswith(IMPORTED)

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    def write(self, directory: Path) -> None:
        """Replaces the manifest of `directory` atomically."""
        replace_whole(directory / MANIFEST_NAME, self.text())

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Reads the manifest in a directory.

        Raises ValueError if it cannot be read, is damaged or of a newer schema.
        """
        from ddlprof.base.reading import read_bytes  # not at the top: few processes of a training read one

        return decode_manifest(read_bytes(directory / MANIFEST_NAME, MAX_MANIFEST_BYTES))


@dataclass(frozen=True)
class UsedOfHost:
    """Facts about the machine that reports and predictions use."""

    instance_type: str | None = None
    cpu_model: str | None = None
    cpu_family: str | None = None
    available_cores: int | None = None
    logical_cores: int | None = None
    cpu_quota_cores: float | None = None
    cpu_16bit: list[str] | None = None


@dataclass(frozen=True)
class UsedOfCalibration:
    """Parts of the calibration that reports and predictions use."""

    seconds: float | None = None


def decode_manifest(content: bytes | ReadingError) -> Manifest:
    """The manifest in a file, with every field checked. Raises ValueError if it is damaged or of a newer schema."""
    from ddlprof.base.reading import NOT_NEGATIVE, decode, versioned_object

    value = versioned_object(content, SCHEMA_VERSION, MAX_MANIFEST_BYTES)
    manifest = decode(Manifest, value, numbers_are=NOT_NEGATIVE)
    decode(UsedOfHost, manifest.host, "host", NOT_NEGATIVE)
    decode(UsedOfCalibration, manifest.calibration or {}, "calibration", NOT_NEGATIVE)
    return manifest
