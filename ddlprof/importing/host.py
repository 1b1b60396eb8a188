"""The timeline of the training thread, for traces without a device: the class of each nanosecond of a step.

The first class that applies counts: waiting for the batch; waiting for a collective, in an operator that waits or
without any operator while a collective is under way; computing, from the first forward to the end of the last update.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddlprof.importing.intervals import (
    IntArray,
    Spans,
    by_priority,
    column,
    common,
    covered,
    empty,
    first_outside,
    holds,
    merged,
    union,
)
from ddlprof.importing.names import MESSAGES, Message
from ddlprof.importing.steps import HostSteps, Steps, Transfers, backward_of_all, spans_of
from ddlprof.importing.trace_columns import TraceColumns

PAUSE_NS = 250_000
"""The longest pause in ns between two operators that counts as computing, as it does in `ddlprof run`: the interpreter
is on its way to the next operator."""
_WAKING_NS = 1_000_000
"""If a thread goes on within this time (ns) after a collective, it has waited for it and was being woken."""
_CLOCK_NS = 20_000
"""A transfer may seem to begin this much (ns) before it was issued, as two threads read the clock."""


def host_steps_timed(
    found: TraceColumns, steps: HostSteps, thread: int | None, group: tuple[str, int] | None, on_device: bool
) -> tuple[Steps, Transfers]:
    """The steps of the training thread, and the collectives of the host.

    `group`: name and size of the only process group; None if there are several or none is known. `on_device`: the
    thread runs ahead of a device that the trace does not show, so only its waits for batches are known.
    """
    own = [thread] if thread is not None else []
    loading, zeroing, wrapped = (
        union(empty(), *(spans_of(track.get(each)) for each in own))
        for track in (found.loading, found.zeroing, found.wrapped)
    )
    waits = union(empty(), *(spans_of(track) for track in found.waits.values()))
    backward = backward_of_all(found)
    updates = merged(column([u.begin for u in found.updates]), column([u.end for u in found.updates]))
    operators = union(backward, updates, *(spans_of(found.operators.get(each)) for each in own))
    forward = forward_of(found, thread)
    zones = _zones(steps, forward, _without(operators, union(loading, zeroing)), updates)
    computing = common(union(operators, pause=PAUSE_NS), zones)
    transfers = _transfers(found, thread, group)
    issuing = merged(column([i[0] for i in found.issued]), column([i[1] for i in found.issued]))
    awaited_until = _woken(transfers.end, union(operators, loading))
    under_way = union(merged(transfers.ready, awaited_until), issuing)
    begin, end = steps.begin, steps.end
    has_parts = bool(len(backward.begin)) and bool(found.updates)
    layers = (
        loading, waits, common(updates, computing), common(_backward_passes(forward, backward, updates), computing),
        computing,
        under_way, common(_inside_passes(forward, backward, updates), zones),
        common(wrapped, zones),
    )  # fmt: skip
    data, waited, optimizer, of_passes, rest, comm, in_passes, in_wrapped, other = by_priority(layers, begin, end)
    of_backward, of_forward = of_passes + in_passes, rest + in_wrapped
    timed = Steps(
        number=steps.number, begin=begin, end=end, compute=optimizer + of_backward + of_forward,
        parts=(of_forward, of_backward, optimizer) if has_parts else None, data=data if found.loading else None,
        h2d=np.zeros(len(steps), dtype=np.int64), comm=waited + comm, other=other,
    )  # fmt: skip
    if on_device:
        rest = end - begin - (data if found.loading else 0)
        timed = replace(timed, compute=None, parts=None, h2d=None, comm=None, other=rest)
    busy = union(loading, computing)
    return timed, _with_exposed(transfers, awaited_until, _without(busy, waits))


def forward_of(found: TraceColumns, thread: int | None) -> Spans:
    """The operators of forwards with gradients. Left out: making a batch, zeroing gradients, updates, recomputation."""
    if thread is None:
        return empty()
    left_out = union(
        backward_of_all(found),
        *(spans_of(track.get(thread)) for track in (found.loading, found.zeroing)),
        merged(column([u.begin for u in found.updates]), column([u.end for u in found.updates])),
    )
    marked = _without(spans_of(found.forward.get(thread)), left_out)
    return marked if len(marked.begin) else _without(spans_of(found.operators.get(thread)), left_out)


def _backward_passes(forward: Spans, backward: Spans, updates: Spans) -> Spans:
    """From the first function of each backward pass until something else begins, so DDP's work after it is included."""
    limits = np.sort(np.concatenate([forward.begin, updates.begin]))
    until = _first_from(limits, backward.end, np.full(len(backward.end), np.iinfo(np.int64).max))
    last = len(backward.end) and until == np.iinfo(np.int64).max
    return merged(backward.begin, np.where(last, backward.end, until))


def _inside_passes(forward: Spans, backward: Spans, updates: Spans) -> Spans:
    """Spans from the first function of each backward pass to its last, in which torch's engine runs and no script."""
    limits = np.sort(np.concatenate([forward.begin, updates.begin]))
    passes, first = np.unique(np.searchsorted(limits, backward.begin, side="right"), return_index=True)
    last = np.concatenate([first[1:], [len(backward.begin)]])[: len(passes)] - 1
    return Spans(backward.begin[first], backward.end[last])


def _zones(steps: HostSteps, forward: Spans, operators: Spans, updates: Spans) -> Spans:
    """For each step, from its first forward to the end of its last update (without one, of its last operator)."""
    first = _first_from(forward.begin, steps.begin, steps.end)
    first = np.where(first < steps.end, first, _first_from(operators.begin, steps.begin, steps.end))
    last_update = np.concatenate([[-1], updates.end])[np.searchsorted(updates.end, steps.end, side="right")]
    last_operator = np.concatenate([[-1], operators.end])[np.searchsorted(operators.end, steps.end, side="right")]
    last = np.where(last_update > first, last_update, last_operator)
    return merged(first, np.minimum(last, steps.end))


def _first_from(times: IntArray, begin: IntArray, end: IntArray) -> IntArray:
    """The first of the times in each window; the window's end if there is none."""
    limit = np.concatenate([times, [np.iinfo(np.int64).max]])
    return np.asarray(np.minimum(limit[np.searchsorted(times, begin)], end))


def _without(spans: Spans, taken: Spans) -> Spans:
    """The parts of `spans` that are not in `taken`."""
    if not len(taken.begin):
        return spans
    limits = np.iinfo(np.int64)
    free = Spans(np.concatenate([[limits.min], taken.end]), np.concatenate([taken.begin, [limits.max]]))
    return common(spans, free)


def _transfers(found: TraceColumns, thread: int | None, group: tuple[str, int] | None) -> Transfers:
    """The host's collectives, each with the operator that issued it; collectives run in the order of issue."""
    issued: dict[str, list[int]] = {}
    for begin, _, op, _ in sorted(found.issued):
        issued.setdefault(op, []).append(begin)
    taken = dict.fromkeys(issued, 0)
    messages: dict[Message, int] = {}
    rows = []
    for begin, end, op, size in sorted(found.transfers, key=lambda t: (t[0], t[1], t[2])):
        ready = begin
        queue, at = issued.get(op, []), taken.get(op, 0)
        if at < len(queue) and queue[at] <= begin + _CLOCK_NS:
            ready, taken[op] = min(queue[at], begin), at + 1
        message = -1
        if group is not None and op not in MESSAGES:
            message = messages.setdefault(Message(op, group[0], group[1], size), len(messages))
        rows.append((ready, max(end, ready), message))
    ready_at, ends, which = (column([row[i] for row in rows]) for i in range(3))
    nothing = np.full(len(rows), -1, dtype=np.int64)
    return Transfers(ready_at, ends, nothing, np.zeros(len(rows), np.int64), which.astype(np.int32), list(messages))


def _woken(end: IntArray, active: Spans) -> IntArray:
    """For each end of a collective, when the thread went on, if it was idle and went on soon."""
    following = _first_from(active.begin, end, end + _WAKING_NS)
    return np.where(holds(active, end) | (following == end + _WAKING_NS), end, following)


def _with_exposed(transfers: Transfers, until: IntArray, busy: Spans) -> Transfers:
    """Sets the idle time that each collective exposes. If several are under way, the first counts."""
    order = np.lexsort((transfers.end, transfers.ready))
    begin, end, until = transfers.ready[order], transfers.end[order], until[order]
    before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(until)[:-1]]) if len(end) else end
    claimed_from = np.minimum(np.maximum(begin, before), until)
    exposed = until - claimed_from - covered(busy, claimed_from, until)
    need = np.where(exposed > 0, first_outside(busy, claimed_from), -1)
    return Transfers(begin, end, need, exposed, transfers.message[order], transfers.messages)
