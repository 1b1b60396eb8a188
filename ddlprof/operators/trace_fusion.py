"""Estimates which bytes and launches of a step would be left with torch.compile, from the order and the flow of data.

As in inductor, operators over the same elements are joined into one kernel if one reads what another writes:
elementwise ones, copies, look-ups, normalisations, softmax and reductions. A tensor that nothing outside the kernel
reads is then never written. Products, convolutions, attention and recurrent layers remain single kernels. So does the
update, which is not compiled with the model.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod

from ddlprof.operators.trace_operators import Access, OperatorCall

_JOINED = frozenset({"elementwise", "normalization", "softmax", "reduction", "copy", "embedding"})
_BY_ELEMENT = ("elementwise", "copy")
_Sources = dict[int, float]
"""Bytes to read, by the storage."""


@dataclass
class _Kernel:
    calls: list[int] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    """The numbers of elements over which it goes, and of the rows of which it has sums."""
    closed: bool = False
    """Whether it ends in sums over more than rows, for which later operators have to wait."""
    needs: set[int] = field(default_factory=set)
    """The kernels from which it reads."""


def estimate(calls: list[OperatorCall]) -> set[int]:
    """Sets `fused_bytes` and `fused_launches` of all calls. Returns the storages that backward computes again."""
    kernels = _kernels(calls)
    home = {call: number for number, kernel in enumerate(kernels) for call in kernel.calls}
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for place, call in enumerate(calls):
        for access in call.reads:
            readers[access.storage].add(home[place])
    again: dict[int, _Sources] = {}
    for number in range(len(kernels)):
        again |= _computed_again(calls, kernels, number, readers)
    for storage, sources in again.items():
        for source in sources:
            readers[source] |= readers[storage]
    for number, kernel in enumerate(kernels):
        _share(calls, kernel, number, readers, again)
    return set(again)


def _computed_again(
    calls: list[OperatorCall], kernels: list[_Kernel], number: int, readers: dict[int, set[int]]
) -> dict[int, _Sources]:
    """Results of a kernel of forward that only kernels of backward read, and that these compute again element by
    element from fewer bytes, which are in memory: those bytes by storage. Inductor's partition of the graph keeps as
    few bytes as it can, and never computes again what a product would read (Horace He, Min-cut optimal recomputation,
    2022)."""
    from_memory: dict[int, _Sources] = {}
    kept: _Sources = {}
    for call in (calls[place] for place in kernels[number].calls):
        by_element = call.kind in _BY_ELEMENT and call.phase == "forward" and not set(call.reads) & set(call.writes)
        sources: _Sources = {}
        for access in call.reads:
            sources |= from_memory.get(access.storage, {access.storage: access.bytes})
        for access in call.writes if by_element and "dropout" not in call.name else ():
            others = readers.get(access.storage, set()) - {number}
            if all(_joins_backward(calls, kernels[other]) for other in others):
                from_memory[access.storage] = sources
                kept |= {access.storage: access.bytes} if others else {}
    needed = {source: size for storage in kept for source, size in from_memory[storage].items()}
    return {each: from_memory[each] for each in kept} if sum(needed.values()) <= sum(kept.values()) else {}


def _joins_backward(calls: list[OperatorCall], kernel: _Kernel) -> bool:
    first = calls[kernel.calls[0]]
    return first.phase == "backward" and _can_join(first)


def _kernels(calls: list[OperatorCall]) -> list[_Kernel]:
    """The kernels with their calls, in the order of their first calls."""
    kernels: list[_Kernel] = []
    made_by: dict[int, int] = {}
    """For each storage the kernel that wrote it last."""
    for place, call in enumerate(calls):
        sources = {made_by[access.storage] for access in call.reads if access.storage in made_by}
        chosen = _joins(call, sources, kernels, calls) if _can_join(call) else None
        if chosen is None:
            kernels.append(_Kernel(closed=not _can_join(call) or _sums_first(call)))
            chosen = len(kernels) - 1
        for other in sources - {chosen}:
            if _merges(other, chosen, kernels, calls):
                _merge(other, chosen, kernels)
                made_by.update((storage, chosen) for storage, kernel in made_by.items() if kernel == other)
                sources = sources - {other}
        kernel = kernels[chosen]
        kernel.calls.append(place)
        kernel.needs |= sources - {chosen}
        kernel.sizes |= _sizes(call)
        kernel.closed |= _ends(call)
        for access in call.writes:
            made_by[access.storage] = chosen
    return [kernel for kernel in kernels if kernel.calls]


def _merges(other: int, chosen: int, kernels: list[_Kernel], calls: list[OperatorCall]) -> bool:
    """Whether two kernels from which one operator reads can be one: they go over the same elements, and neither waits
    for a third one that needs the other."""
    first, second = kernels[other], kernels[chosen]
    if first.closed or second.closed or not second.calls or first.sizes.isdisjoint(second.sizes):
        return False
    if not _can_join(calls[first.calls[0]]) or calls[first.calls[0]].phase != calls[second.calls[0]].phase:
        return False
    return not any(
        _comes_from(third, source, kernels)
        for kernel, source in ((first, chosen), (second, other))
        for third in kernel.needs - {source}
    )


def _merge(other: int, chosen: int, kernels: list[_Kernel]) -> None:
    """Moves all calls of one kernel to another one."""
    first, second = kernels[other], kernels[chosen]
    second.calls = sorted(second.calls + first.calls)
    second.sizes |= first.sizes
    second.needs = (second.needs | first.needs) - {other, chosen}
    kernels[other] = _Kernel()
    for kernel in kernels:
        if other in kernel.needs:
            kernel.needs = kernel.needs - {other} | {chosen}


def _can_join(call: OperatorCall) -> bool:
    return call.kind in _JOINED and call.phase != "optimizer"


def _joins(call: OperatorCall, sources: set[int], kernels: list[_Kernel], calls: list[OperatorCall]) -> int | None:
    """The kernel that `call` can join: it computes what the call reads. None if there is none."""
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
            if needed not in seen and kernels[needed].calls[-1] > begins:  # one that ended before needs nothing of it
                seen.add(needed)
                left.append(needed)
    return False


def _sizes(call: OperatorCall) -> set[int]:
    """The number of elements over which the call goes, and of rows of which it makes sums."""
    if call.kind in ("normalization", "softmax"):
        return {prod(call.shape), call.shape[0]}
    if call.kind == "embedding":
        return {prod(call.shape)}
    return {call.shape[0], call.shape[1]} if call.by_rows else {call.shape[0]}


def _ends(call: OperatorCall) -> bool:
    """Whether the call sums over more than rows, so that its result is there only when everything is done."""
    return call.kind == "reduction" and not call.by_rows and call.shape[1] * 4 < call.shape[0]


def _sums_first(call: OperatorCall) -> bool:
    """Whether the call needs sums over the whole batch first, as batch normalisation does.

    These are a separate kernel.
    """
    return call.kind == "normalization" and "batch_norm" in call.name and not call.by_rows


def _share(
    calls: list[OperatorCall], kernel: _Kernel, number: int, readers: dict[int, set[int]], again: dict[int, _Sources]
) -> None:
    """Sets for each call of a kernel the bytes that it still reads and writes. The launch counts for the last call."""
    members = [calls[place] for place in kernel.calls]
    have: set[int] = set()
    for call in members:
        reads: _Sources = {}
        for access in call.reads:
            reads |= again.get(access.storage, {access.storage: access.bytes})
        left = [each for each in call.writes if each.storage not in again and _leaves(each, number, readers)]
        written = sum(access.bytes for access in left)
        read = sum(size for storage, size in reads.items() if storage not in have)
        call.fused_bytes = min(call.bytes, float(read + written)) if len(members) > 1 else call.bytes
        call.fused_launches = 0.0
        have.update(reads, (access.storage for access in (*call.reads, *call.writes)))
    last = members[-1]
    last.fused_launches = 1.0 if len(members) > 1 else last.launches


def _leaves(access: Access, number: int, readers: dict[int, set[int]]) -> bool:
    """Whether an access still goes to memory: another kernel reads the storage, or it is a result of the step."""
    others = readers.get(access.storage, set())
    return not others or bool(others - {number})
