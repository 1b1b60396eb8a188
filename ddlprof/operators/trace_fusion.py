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

from ddlprof.operators.trace_operators import Access, Call

_JOINED = frozenset({"elementwise", "normalization", "softmax", "reduction", "copy", "embedding"})


@dataclass
class _Kernel:
    calls: list[int] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    """Elements that it goes over, and the rows of them that it has sums of."""
    closed: bool = False
    """It ends in sums over something else than rows: what needs them has to wait."""
    needs: set[int] = field(default_factory=set)
    """The kernels that it reads from."""


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
    """The calls in their kernels, in the order of the first call of each."""
    kernels: list[_Kernel] = []
    made_by: dict[int, int] = {}
    """The kernel that last wrote a storage."""
    for place, call in enumerate(calls):
        sources = {made_by[access.storage] for access in call.reads if access.storage in made_by}
        chosen = _joins(call, sources, kernels, calls) if _can_join(call) else None
        if chosen is None:
            kernels.append(_Kernel(closed=not _can_join(call) or _sums_first(call)))
            chosen = len(kernels) - 1
        kernel = kernels[chosen]
        kernel.calls.append(place)
        kernel.needs |= sources - {chosen}
        kernel.sizes |= _sizes(call)
        kernel.closed |= _ends(call)
        for access in call.writes:
            made_by[access.storage] = chosen
    return kernels


def _can_join(call: Call) -> bool:
    return call.kind in _JOINED and call.phase != "optimizer"


def _joins(call: Call, sources: set[int], kernels: list[_Kernel], calls: list[Call]) -> int | None:
    """The kernel that computes what `call` reads, where the call can be done in it."""
    if _sums_first(call):
        return None
    for source in sorted(sources, reverse=True):
        kernel = kernels[source]
        same_phase = calls[kernel.calls[0]].phase == call.phase
        if not same_phase or (kernel.closed and not _ends(call)) or not _can_join(calls[kernel.calls[0]]):
            continue
        if kernel.sizes.isdisjoint(_sizes(call)):
            continue
        if not any(_comes_from(other, source, kernels) for other in sources if other != source):
            return source
    return None


def _comes_from(kernel: int, source: int, kernels: list[_Kernel]) -> bool:
    """Whether a kernel needs another one, directly or through others."""
    begins = kernels[source].calls[0]
    seen, left = {kernel}, [kernel]
    while left:
        for needed in kernels[left.pop()].needs:
            if needed == source:
                return True
            if needed not in seen and kernels[needed].calls[-1] > begins:  # what ended before needs nothing of it
                seen.add(needed)
                left.append(needed)
    return False


def _sizes(call: Call) -> set[int]:
    """The elements that it goes over, and the rows where it makes sums of these."""
    if call.kind in ("normalization", "softmax"):
        return {prod(call.shape), call.shape[0]}
    if call.kind == "embedding":
        return {prod(call.shape)}
    return {call.shape[0], call.shape[1]} if call.by_rows else {call.shape[0]}


def _ends(call: Call) -> bool:
    """Whether it sums over something else than rows, so that its result comes only when all is done."""
    return call.kind == "reduction" and not call.by_rows and call.shape[1] * 4 < call.shape[0]


def _sums_first(call: Call) -> bool:
    """Whether it needs sums over the whole batch before it can begin, as batch normalisation does: those are a kernel
    of their own."""
    return call.kind == "normalization" and "batch_norm" in call.name and not call.by_rows


def _share(calls: list[Call], kernel: _Kernel, number: int, readers: dict[int, set[int]]) -> None:
    """Gives every call of a kernel what it still reads and writes; the launch belongs to the last."""
    members = [calls[place] for place in kernel.calls]
    if len(members) == 1:
        members[0].fused_bytes, members[0].fused_launches = members[0].bytes, members[0].launches
        return
    have: set[int] = set()
    for call in members:
        reads = [access for access in call.reads if access.storage not in have]
        writes = [access for access in call.writes if _leaves(access, number, readers)]
        call.fused_bytes = min(call.bytes, float(sum(access.bytes for access in reads + writes)))
        call.fused_launches = 0.0
        have.update(access.storage for access in (*call.reads, *call.writes))
    members[-1].fused_launches = 1.0


def _leaves(access: Access, number: int, readers: dict[int, set[int]]) -> bool:
    """Whether the access has to go to memory: another kernel reads it, or it is a result of the step."""
    others = readers.get(access.storage, set())
    return not others or bool(others - {number})
