"""Merges the calls of two traces, at one batch and at twice that batch, into operators that say how they grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ddlprof.model.operators import Operator
from ddlprof.operators.trace_operators import OperatorCall

_EXACT = 1e-6
_LOOK_AHEAD = 6
"""The most additional operators of one trace at one place."""


def merged(calls: list[OperatorCall], doubled: list[OperatorCall], compiled: bool = False) -> tuple[Operator, ...]:
    """The operators of `calls`; equal ones are merged and counted.

    `doubled`: the calls at twice the batch. A call without a counterpart there counts as independent of the batch.
    `compiled`: bytes and launches are those with torch.compile.
    """
    found: defaultdict[Operator, list[OperatorCall]] = defaultdict(list)
    for call, twice in zip(calls, counterparts(calls, doubled), strict=True):
        found[_operator(call, twice)].append(call)
    operators = (_with_counts(operator, same) for operator, same in found.items())
    return tuple(_fused(operator) for operator in operators) if compiled else tuple(operators)


def counterparts(calls: list[OperatorCall], doubled: list[OperatorCall]) -> list[OperatorCall | None]:
    """For each call its counterpart in the other trace; None if there is none.

    Both traces have the same operators in the same order, except a few, such as copies that a batch of one does not
    need.
    """
    found: list[OperatorCall | None] = []
    place = 0
    for call in calls:
        near = doubled[place : place + _LOOK_AHEAD]
        ahead = next((step for step, other in enumerate(near) if _same(call, other)), None)
        if ahead is None:
            found.append(None)
        else:
            found.append(near[ahead])
            place += ahead + 1
    return found


def _same(call: OperatorCall, other: OperatorCall) -> bool:
    """Whether both are the same operator with sizes that may follow the batch."""
    if (call.name, call.phase, len(call.shape)) != (other.name, other.phase, len(other.shape)):
        return False
    return all(before <= after <= 4 * before for before, after in zip(call.shape, other.shape, strict=True))


def missing(calls: list[OperatorCall], doubled: list[OperatorCall]) -> float:
    """The share of the bytes of `calls` without a counterpart."""
    alone = sum(c.bytes for c, other in zip(calls, counterparts(calls, doubled), strict=True) if other is None)
    return alone / max(1.0, sum(call.bytes for call in calls))


def _fused(operator: Operator) -> Operator:
    if operator.fused_bytes is None or operator.fused_launches is None:
        return operator
    return operator.fused(operator.fused_bytes, operator.fused_launches)


def _operator(call: OperatorCall, twice: OperatorCall | None) -> Operator:
    grows = None if twice is None else growing(call.shape, twice.shape)
    fixed = call.bytes
    if twice is not None and grows is not None:
        fixed = min(max(2 * call.bytes - twice.bytes, 0.0), call.bytes)
    return Operator(
        kind=call.kind, phase=call.phase, name=call.name, dtype=call.dtype, shape=call.shape, flops=call.flops,
        bytes=call.bytes, launches=call.launches, count=1, grows=grows, fixed_bytes=fixed,
    )  # fmt: skip


def growing(shape: tuple[int, ...], doubled: tuple[int, ...]) -> int | None:
    """The index of the size that follows the batch: it doubles, or else grows the most. None: no size grows."""
    ratios = [(after / before if before else 1.0) for before, after in zip(shape, doubled, strict=True)]
    largest = max(ratios, default=1.0)
    return None if largest <= 1 + _EXACT else ratios.index(largest)


def _with_counts(operator: Operator, calls: list[OperatorCall]) -> Operator:
    count = len(calls)
    fields = {**vars(operator), "count": float(count)}
    fused = [call.fused_bytes for call in calls if call.fused_bytes is not None]
    launches = [call.fused_launches for call in calls if call.fused_launches is not None]
    fields["fused_bytes"] = _mean(fused) if len(fused) == count else None
    fields["fused_launches"] = _mean(launches) if len(launches) == count else None
    return Operator(**fields)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(sum(found) / len(found), 6)
