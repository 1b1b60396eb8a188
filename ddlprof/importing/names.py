"""What an event of a trace is, by its category, name and arguments.

Communication kernels are known by the names of their functions (`ddlprof.model.kernels`), and by what
torch writes beside NCCL's kernels. A word elsewhere in a kernel's name does not count, as compilers name a kernel after
all that it fused.
"""

from __future__ import annotations

import math
import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from ddlprof.model.dimensions import UNKNOWN, dimension_of_name
from ddlprof.model.kernels import is_communication


class ActivityKind(IntEnum):
    """What a device does in an activity."""

    COMPUTE = 0
    COMMUNICATION = 1
    TO_DEVICE = 2
    FROM_DEVICE = 3


KERNEL, COPY, FILL, CALL, OPERATOR, RANGE, RANGE_ON_DEVICE = range(7)

CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY, "memcpy": COPY,
    "gpu_memset": FILL, "memset": FILL,
    "cuda_runtime": CALL, "cuda_driver": CALL, "runtime": CALL, "hip_runtime": CALL, "xpu_runtime": CALL,
    "privateuse1_runtime": CALL,
    "cpu_op": OPERATOR, "operator": OPERATOR,
    "user_annotation": RANGE, "gpu_user_annotation": RANGE_ON_DEVICE,
}  # fmt: skip
"""The categories that are read, in lower case (torch 1.8 wrote some in upper case).

Kineto writes the work of XPUs, and of backends of its own that report to it, under the same names as that of CUDA and
ROCm. It gives the work of MTIA and HPU names of their own, and Ascend's profiler that of NPUs: what those events mean
is not known here.
"""

_OTHER_DEVICE = re.compile(r"(?:^|_)(mtia|hpu|xpu|npu|tpu|xla|mps|ipu|neuron|privateuse\d?)(?:_|$)", re.IGNORECASE)
"""Parts of categories that only trainings on such a device have: `mtia_ccp_events`, `hpu_op`, `async_npu`."""

_COMMUNICATION = re.compile(
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|(?:one|two)_?shot_?all_?reduce|k?userbuffers_)\w*",
    re.IGNORECASE,
)
"""Beginnings of names of communication kernels in vLLM, SGLang, TensorRT-LLM, aiter and Transformer Engine."""
_COMMUNICATION_NAMESPACES = re.compile(
    r"(?:^|::)(?:c10d|mscclpp|rocshmem|mori|pplx|quickreduce|trtllm_\w*allreduce\w*|oneccl)::"
)
_COMPUTATION = re.compile(
    r"at::|at_cuda_detail|c10::|cub::|thrust::|cutlass|cublas|gemm|gemv|cudnn|miopen|rocblas|hipblas|^Cijk_|\bck::|ck_tile"
    r"|triton|flash|fmha|attn|attention|softmax|norm|elementwise|reduce_kernel|splitk|winograd|conv|wgrad|dgrad|pool|fft"
    r"|embedding|adam|sgd|lamb\b|multi_tensor|dropout|scatter|gather|index|sort|scan|topk|nhwc|nchw|transpose|copy|fill"
    r"|CatArray|memset|memcpy|fbgemm|apex|(?:^|[_ ])(?:sm\d\d|ampere|volta|turing|hopper)_|nvjet|rnn|lstm|gru|loss"
    r"|foreach|bn_|relu|gelu|silu|rotary|quant|cast|philox|rand",
    re.IGNORECASE,
)
_LAUNCH = re.compile(r"launch|memcpy|memset|enqueue|commandlistappend", re.IGNORECASE)
"""Calls of CUDA and HIP, of SYCL's runtime (`urEnqueueMemBufferWrite`) and of Level Zero."""
_GRAPH_LAUNCH = re.compile(r"graphlaunch", re.IGNORECASE)

_TO_DEVICE = re.compile(
    r"HtoD|HostToDevice|\b[HM]2D\b|Host\w* *-> *Device|Pageable *-> *Device|Pinned *-> *Device", re.IGNORECASE
)
_FROM_DEVICE = re.compile(r"DtoH|DeviceToHost|\bD2[HM]\b|Device *-> *(?:Host|Pageable|Pinned)", re.IGNORECASE)
"""On XPUs `M2D` is a copy from memory that Level Zero has not allocated, which is the host's."""

STEP = re.compile(r"ProfilerStep\*?#(\d{1,9})")
UPDATE = "Optimizer.step#"
ZERO = "Optimizer.zero_grad#"
LOADER = "enumerate(DataLoader)#"
BACKWARD = "autograd::engine::evaluate_function"
PARAMETERS = "record_param_comms"
WRAPPED_FORWARDS = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")
_HOST_COLLECTIVE = re.compile(r"(gloo|mpi|ucc|oneccl|ccl):(\w+)")
_ISSUED = re.compile(r"c10d::(\w+)")
_WAIT = re.compile(r"_?c10d_functional::wait_tensor")

_KERNEL_OP = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|send_?recv|reduce)", re.IGNORECASE
)
OPS = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "barrier", "reduce", "gather", "scatter",
    "send", "recv",
)  # fmt: skip
"""The operations by the beginning of their names, without underscores. Names that contain another one come first."""


@lru_cache(maxsize=1 << 10)
def other_device(category: str) -> str | None:
    """The kind of device that has events of this category; None for those that several kinds have."""
    match = _OTHER_DEVICE.search(category)
    return match[1].lower() if match else None


@lru_cache(maxsize=1 << 14)
def kernel_kind(name: str) -> ActivityKind:
    """Whether a kernel communicates between devices or computes."""
    function = _function(name)
    own = function.rpartition("::")[2]
    if is_communication(name) or _COMMUNICATION_NAMESPACES.search(function) or _COMMUNICATION.match(own):
        return ActivityKind.COMMUNICATION
    return ActivityKind.COMPUTE


@lru_cache(maxsize=1 << 14)
def is_known(name: str) -> bool:
    """Whether the kind of a kernel is known by a pattern. Unknown kernels count as computing."""
    return kernel_kind(name) is ActivityKind.COMMUNICATION or bool(_COMPUTATION.search(name))


@lru_cache(maxsize=1 << 10)
def copy_kind(name: str) -> ActivityKind:
    """The kind of a copy. Copies inside a device count as computing, copies between devices as communication."""
    if is_communication(name):
        return ActivityKind.COMMUNICATION
    if _TO_DEVICE.search(name):
        return ActivityKind.TO_DEVICE
    return ActivityKind.FROM_DEVICE if _FROM_DEVICE.search(name) else ActivityKind.COMPUTE


@lru_cache(maxsize=1 << 10)
def is_launch(name: str) -> bool:
    """Whether a call into the driver may start something on the device."""
    return bool(_LAUNCH.search(name))


@lru_cache(maxsize=1 << 10)
def is_graph_launch(name: str) -> bool:
    """Whether the call starts a whole CUDA graph, in which forward and backward cannot be told apart."""
    return bool(_GRAPH_LAUNCH.search(name))


@lru_cache(maxsize=1 << 12)
def host_collective(name: str) -> str | None:
    """The operation whose transfer a range of gloo, MPI or UCC is; None for other ranges."""
    match = _HOST_COLLECTIVE.fullmatch(name)
    return plain_op(match[2]) if match else None


@lru_cache(maxsize=1 << 12)
def issued_collective(name: str) -> str | None:
    """The operation that an operator of torch.distributed issues; None for other operators."""
    match = _ISSUED.fullmatch(name)
    return plain_op(match[1]) if match else None


@lru_cache(maxsize=1 << 12)
def is_wait(name: str) -> bool:
    """Whether the thread waits for a collective in this operator."""
    return bool(_WAIT.fullmatch(name))


def plain_op(name: str) -> str | None:
    """The operation of which `name` is a variant: allreduce_, _allgather_base_, all_to_allv, ..."""
    squeezed = name.replace("_", "").lower()
    return next((op for op in OPS if squeezed.startswith(op)), None)


@lru_cache(maxsize=1 << 12)
def kernel_op(name: str) -> str | None:
    """The operation of a communication kernel; None if its name does not tell."""
    match = _KERNEL_OP.search(_function(name))
    return plain_op(match[1]) if match else None


def _function(name: str) -> str:
    """The name of a function with its namespaces."""
    plain = name.replace("(anonymous namespace)::", "")
    for end in "<(":
        plain = plain.partition(end)[0]
    return plain.rpartition(" ")[2]


_LONGEST_GROUP = 200
_ELEMENT_BYTES = {
    "double": 8, "long": 8, "longint": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4, "half": 2,
    "bfloat16": 2, "short": 2, "shortint": 2, "byte": 1, "unsignedchar": 1, "char": 1, "signedchar": 1, "bool": 1,
}  # fmt: skip
_MOST_BYTES = 2**50
MESSAGES = ("send", "recv")


class Message(NamedTuple):
    """A collective as one rank knows it. `bytes`: on the side where a rank has all data; None: not recorded."""

    op: str
    group: str
    ranks: int
    bytes: int | None
    dimension: str = UNKNOWN
    """The dimension of the layout that the description of the group names."""


def message_of(args: dict[str, Any], op_of_kernel: str | None) -> Message | None:
    """The collective according to the arguments of a kernel or of `record_param_comms`; None if they lack the group."""
    name = args.get("Collective name")
    op = plain_op(name) if isinstance(name, str) else op_of_kernel
    if op in MESSAGES:  # the other rank is not written, so messages cannot be matched
        return None
    group = args.get("Process Group Name", args.get("Process Group ID"))
    ranks = args.get("Group size")
    if op is None or not isinstance(group, (str, int)) or not isinstance(ranks, int) or not 0 < ranks < 2**30:
        return None
    counts = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    element = element_bytes(args.get("dtype"))
    size = max(known) * element if known and element is not None else None
    dimension = dimension_of_name(str(args.get("Process Group Description", "")))
    return Message(op, _group(str(group), args), ranks, _bounded(size), dimension)


def _group(name: str, args: dict[str, Any]) -> str:
    """The group's name with its ranks: each rank counts its own groups, so several groups may have the same name."""
    ranks = args.get("Process Group Ranks")
    text = f"{name} {''.join(ranks.split())}" if isinstance(ranks, str) else name
    return text[:_LONGEST_GROUP]


def sizes_of(args: dict[str, Any]) -> int | None:
    """The bytes of the inputs of an operator, recorded with `record_shapes`."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    total = 0
    for shape, kind in zip(shapes, types, strict=False):
        element = element_bytes(kind)
        if element is None or not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            return None
        total += math.prod(shape) * element
    return _bounded(total) if shapes else None


def element_bytes(kind: Any) -> int | None:
    """The bytes of one element of a data type, by its name in torch or C++."""
    if not isinstance(kind, str):
        return None
    plain = kind.rpartition("::")[2].replace(" ", "").lower()
    return 1 if plain.startswith("float8") else _ELEMENT_BYTES.get(plain)


def _bounded(size: int | None) -> int | None:
    return size if size is not None and size < _MOST_BYTES else None
