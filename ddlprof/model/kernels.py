"""Tells by the names of kernels and copies which activities of a device are communication, and which collective.

Only the name of the function counts. A kernel that mentions a collective elsewhere, such as in a template argument or
in a name that a compiler made of all it fused, is computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_PREFIXES = (
    "nccl",  # ncclDevKernel_..., ncclKernel_..., ncclSymkDevKernel_..., RCCL's too
    "rccl", "msccl", "nvshmem", "rocshmem",
    "one_shot_all_reduce", "two_shot_all_reduce", "one_shot_reduce_scatter", "multimem_",  # torch's symmetric memory
    "cross_device_reduce",  # inference engines'
    "memcpy ptop",  # by a copy engine
)  # fmt: skip
_NAMESPACES = ("nvshmem", "rocshmem", "deep_ep", "quickreduce")
_ANONYMOUS = "(anonymous namespace)::"

_COLLECTIVES = (
    ("allreduce", "allreduce"), ("barrier", "allreduce"),
    ("allgather", "allgather"),
    ("reducescatter", "reducescatter"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("send", "sendrecv"), ("recv", "sendrecv"), ("alltoall", "sendrecv"), ("gather", "sendrecv"),
    ("scatter", "sendrecv"),
)  # fmt: skip
"""Operations by the beginning of NCCL's kernel names, without underscores. The first match counts."""


class Activity(NamedTuple):
    """Something the device did. Times are nanoseconds of unix time."""

    name: str
    begin: int
    end: int


def is_communication(name: str) -> bool:
    """Whether an activity moves data between devices."""
    *namespaces, function = _function(name)
    return function.startswith(_PREFIXES) or any(each.startswith(_NAMESPACES) for each in namespaces)


def match_kernels(ops: Sequence[str], kernels: Sequence[Activity]) -> list[int] | None:
    """The time each collective took in ns, given the communication kernels in the order in which they began.

    None unless there is exactly one kernel for each collective, and of the same operation where its name tells:
    otherwise it is unknown which kernel belongs to which collective.
    """
    if len(ops) != len(kernels):
        return None
    if not all(_may_be(op, kernel.name) for op, kernel in zip(ops, kernels, strict=True)):
        return None
    return [kernel.end - kernel.begin for kernel in kernels]


def _may_be(op: str, kernel: str) -> bool:
    plain = op.replace("_", "")
    expected = next((made for begin, made in _COLLECTIVES if plain.startswith(begin)), "")
    function = _function(kernel)[-1].replace("_", "")
    told = next((made for _, made in _COLLECTIVES if made in function), "")
    return not told or told == expected


def _function(name: str) -> list[str]:
    """The function's name and its namespaces in lower case, without result type, templates and parameters."""
    plain = name.replace(_ANONYMOUS, "").lower()
    if plain.startswith("memcpy"):
        return [plain]
    for end in "<(":
        plain = plain.partition(end)[0]
    return plain.rpartition(" ")[2].split("::")
