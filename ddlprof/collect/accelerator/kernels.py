"""Which activities of a device are communication, and which collective each is, by the names of kernels and copies.

Names are those of functions: what only mentions a collective (a kernel that a compiler named after all that it fused,
a template argument) computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_PREFIXES = (
    "nccl",  # ncclDevKernel_..., ncclKernel_..., ncclSymkDevKernel_..., RCCL's too
    "rccl", "msccl", "nvshmem",
    "one_shot_all_reduce", "two_shot_all_reduce", "one_shot_reduce_scatter", "multimem_",  # torch's symmetric memory
    "cross_device_reduce",  # inference engines'
    "memcpy ptop",  # by a copy engine
)  # fmt: skip
_NAMESPACES = ("nvshmem", "deep_ep")
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
"""The kernels of NCCL by the beginning of an operation's name without underscores. The first match counts."""


class Activity(NamedTuple):
    """Something the device did: nanoseconds of unix time."""

    name: str
    begin: int
    end: int


def is_communication(name: str) -> bool:
    """Whether an activity moves data between devices."""
    *namespaces, function = _function(name)
    return function.startswith(_PREFIXES) or any(each.startswith(_NAMESPACES) for each in namespaces)


def match_kernels(ops: Sequence[str], kernels: Sequence[Activity]) -> list[int] | None:
    """The time each collective took, given the communication kernels in the order in which they began.

    None unless there is exactly one for each, of its kind where its name tells: then nobody knows which is whose.
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
    """Namespaces and name of the function, in lower case, without result, template arguments and parameters."""
    plain = name.replace(_ANONYMOUS, "").lower()
    if plain.startswith("memcpy"):
        return [plain]
    for end in "<(":
        plain = plain.partition(end)[0]
    return plain.rpartition(" ")[2].split("::")
