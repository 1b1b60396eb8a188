"""What torch.compile would leave of a step's bytes and launches: an estimate from the order and the flow of data.

As inductor does, operators that go over the same elements are joined into one kernel where one reads what the other
writes: elementwise ones, copies, look-ups, normalisations, softmax and reductions. What nobody outside of the kernel
reads is then never written. Products, convolutions, attention and recurrent layers stay single kernels, and so does the
update, which is not compiled with the model.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod

from ddlprof.collect.facts.tracing.call import Access, Call

_JOINED = frozenset({"elementwise", "normalization", "softmax", "reduction", "copy", "embedding"})
_SAME_SIZE = 1.0
_MOST_READS = 8
"""Inductor stops joining where a kernel would read more tensors than this (`realize_reads_threshold`, twice)."""


@dataclass
class _Kernel:
    calls: list[int] = field(default_factory=list)
    size: int = 0
    """Elements that it goes over."""
    reduced: bool = False
    """It ends in sums over something else than its rows: what needs them has to wait."""
    level: int = 0
    """The longest chain of kernels before it: only kernels of one level can be joined without a circle."""


def estimate(calls: list[Call]) -> None:
    """Sets `fused_bytes` and `fused_launches` of all calls."""
    kernels = _kernels(calls)
    home = {call: number for number, kernel in enumerate(kernels) for call in kernel.calls}
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for place, call in enumerate(calls):
        for access in call.reads:
            readers[access.storage].add(home[place])
    for number, kernel in enumerate(kernels):
        _share(calls, kernel, number, readers)


def _kernels(calls: list[Call]) -> list[_Kernel]:
    kernels: list[_Kernel] = []
    made_by: dict[int, int] = {}
    """The kernel that last wrote a storage."""
    for place, call in enumerate(calls):
        sources = {made_by[access.storage] for access in call.reads if access.storage in made_by}
        chosen = None
        if call.kind in _JOINED and call.phase != "optimizer":
            chosen = _joins(call, sources, kernels, calls)
        if chosen is None:
            level = max((kernels[source].level + 1 for source in sources), default=0)
            kernels.append(_Kernel(level=level))
            chosen = len(kernels) - 1
        kernel = kernels[chosen]
        kernel.calls.append(place)
        if call.kind in _JOINED:
            kernel.size = max(kernel.size, _size(call))
            kernel.reduced |= _ends(call)
        else:
            kernel.reduced = True
        kernel.level = max(kernel.level, max((kernels[s].level + (s != chosen) for s in sources), default=0))
        for access in call.writes:
            made_by[access.storage] = chosen
    return kernels


def _joins(call: Call, sources: set[int], kernels: list[_Kernel], calls: list[Call]) -> int | None:
    """The kernel that computes what `call` reads, where the call can be done in it."""
    for source in sorted(sources, key=lambda each: kernels[each].level, reverse=True):
        kernel = kernels[source]
        first = calls[kernel.calls[0]]
        if first.kind not in _JOINED or first.phase == "optimizer" or first.phase != call.phase:
            continue
        if kernel.reduced and not _ends(call):
            continue
        if _size(call) != kernel.size and not (_ends(call) and _size(call) == kernel.size):
            continue
        if any(kernels[other].level >= kernel.level and other != source for other in sources):
            continue  # the other operand comes later than this kernel
        return source
    return None


def _size(call: Call) -> int:
    """The elements that it goes over."""
    if call.kind in ("normalization", "softmax", "embedding"):
        return prod(call.shape)
    return call.shape[0]


def _ends(call: Call) -> bool:
    """Whether it sums over something else than rows, so that its result comes only when all is done."""
    return call.kind == "reduction" and call.shape[1] * 4 < call.shape[0]


def _share(calls: list[Call], kernel: _Kernel, number: int, readers: dict[int, set[int]]) -> None:
    """Gives every call of a kernel what it still reads and writes; the launch belongs to the last."""
    members = [calls[place] for place in kernel.calls]
    if len(members) == 1:
        members[0].fused_bytes, members[0].fused_launches = members[0].bytes, members[0].launches
        return
    made: set[int] = set()
    have: set[int] = set()
    for call in members:
        reads = [a for a in call.reads if a.storage not in made and a.storage not in have]
        writes = [a for a in call.writes if _leaves(a, number, readers)]
        call.fused_bytes = float(sum(access.bytes for access in reads + writes))
        call.fused_launches = 0.0
        have.update(access.storage for access in reads)
        made.update(access.storage for access in call.writes)
    members[-1].fused_launches = float(max(call.launches for call in members if call is members[-1]))


def _leaves(access: Access, number: int, readers: dict[int, set[int]]) -> bool:
    """Whether another kernel reads it, or nobody: a result of the step."""
    others = readers.get(access.storage, set())
    return not others or bool(others - {number})
