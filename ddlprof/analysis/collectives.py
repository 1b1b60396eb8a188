"""Matches the collectives of the ranks of one attempt and splits each into transfer and wait.

Works on durations, never on time stamps of two machines: clocks need not agree. The communication of one group is a
queue, so a collective starts when it is issued and the one before it is over; its transfer is the shortest duration
over the ranks, because the rank that arrives last does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.records import MISSING, NEVER, CollectiveShape

if TYPE_CHECKING:
    from ddlprof.store import IntArray, RankData

LATE_SHARE = 0.1  # arrival counts as late where the longest wait exceeds this share of the transfer ...
LATE_US = 50  # ... and this much, the jitter of waking a thread

_SEQ_BITS = 48
_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True)
class RankCollectives:
    """Columns beside the rank's `CollectiveTable`; times in microseconds, MISSING where not known."""

    start_us: IntArray
    """Since the start of the step: issued, and the group's queue is free."""
    duration_us: IntArray
    transfer_us: IntArray
    """MISSING for what cannot be split: rooted, asymmetric or unmatched."""
    matched: NDArray[np.bool_]
    """Every rank of the group has a record of it."""
    late: NDArray[np.bool_]
    """Some rank arrived noticeably later than another."""
    last: NDArray[np.bool_]
    """It is late, and this rank is the one that the others waited for."""
    scopes: list[str]
    """For each of the table's shapes: `intra` (one machine), `inter`, or empty where not known."""


def can_split(op: str) -> bool:
    """Whether all ranks play the same part in this operation, so that its end is everybody's."""
    return op.replace("_", "").startswith(("allreduce", "allgather", "reducescatter", "alltoall", "barrier"))


def bus_factor(op: str, ranks: int) -> float:
    """Bytes on the busiest link for each byte of the operation, as nccl-tests count them."""
    plain = op.replace("_", "")
    if ranks < 2 or plain.startswith("barrier"):
        return 0.0
    share = (ranks - 1) / ranks
    if plain.startswith("allreduce"):
        return 2 * share
    return share if can_split(op) else 1.0


def match_collectives(ranks: Sequence[RankData]) -> list[RankCollectives]:
    """Matches by group and sequence number the collectives of the ranks of one attempt."""
    groups = _numbered(s.group for r in ranks for s in r.collectives.shapes)
    kinds = _numbered((s.op, s.bytes, s.ranks) for r in ranks for s in r.collectives.shapes)
    queues = [_queue(rank, groups) for rank in ranks]
    keys = _joined([_column(r, lambda s: groups[s.group]) << _SEQ_BITS | r.collectives.seq for r in ranks])
    unique, key = np.unique(keys, return_inverse=True)
    shortest, longest = _extremes(key, _joined([duration for _, duration in queues]), len(unique))
    one_kind = np.equal(
        *_extremes(key, _joined([_column(r, lambda s: kinds[s.op, s.bytes, s.ranks]) for r in ranks]), len(unique))
    )
    size = np.bincount(key, minlength=len(unique))
    late = longest - shortest > np.maximum(LATE_US, LATE_SHARE * shortest)

    scopes = _scopes(ranks)
    result: list[RankCollectives] = []
    ends = np.cumsum([len(rank.collectives) for rank in ranks])
    for rank, (start, duration), end in zip(ranks, queues, ends, strict=True):
        own = key[end - len(duration) : end]
        matched = one_kind[own] & (size[own] == _column(rank, lambda s: s.ranks))
        split = matched & (shortest[own] != MISSING) & (_column(rank, lambda s: can_split(s.op)) == 1)
        result.append(
            RankCollectives(
                start_us=start,
                duration_us=duration,
                transfer_us=np.where(split, shortest[own], MISSING),
                matched=matched,
                late=split & late[own],
                last=split & late[own] & (duration == shortest[own]),
                scopes=[scopes[shape.group] for shape in rank.collectives.shapes],
            )
        )
    return result


def _numbered(values: Iterable[_T]) -> dict[_T, int]:
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _joined(columns: list[IntArray]) -> IntArray:
    return np.concatenate([*columns, np.zeros(0, dtype=np.int64)])


def _column(rank: RankData, value: Callable[[CollectiveShape], int]) -> IntArray:
    """A property of the shape, for each collective of the rank."""
    table = rank.collectives
    return np.array([value(shape) for shape in table.shapes] or [0], dtype=np.int64)[table.shape]


def _queue(rank: RankData, groups: dict[str, int]) -> tuple[IntArray, IntArray]:
    """Start since the step's start, and duration, by the rule of the queue; a duration is MISSING without an end."""
    table = rank.collectives
    step_start = rank.steps["start_ns"][table.row] // 1000
    ended = table.end_us != NEVER
    ready = step_start + table.ready_us
    end = np.where(ended, step_start + table.end_us, ready)
    start = ready.copy()
    group = _column(rank, lambda s: groups[s.group])
    for number in np.unique(group):
        mine = np.flatnonzero(group == number)
        free = np.maximum.accumulate(end[mine])[:-1]
        start[mine[1:]] = np.maximum(ready[mine[1:]], free)
    duration = np.where(ended, np.maximum(end - start, 0), MISSING)
    return start - step_start, duration


def _extremes(index: IntArray, values: IntArray, length: int) -> tuple[IntArray, IntArray]:
    """The least and the greatest of the values that share an index."""
    least = np.full(length, np.iinfo(np.int64).max)
    greatest = np.full(length, np.iinfo(np.int64).min)
    np.minimum.at(least, index, values)
    np.maximum.at(greatest, index, values)
    return least, greatest


def _scopes(ranks: Sequence[RankData]) -> dict[str, str]:
    """Whether the ranks of each group share a machine; empty if not all of them are known."""
    members: dict[str, list[RankData]] = {}
    sizes: dict[str, int] = {}
    for rank in ranks:
        for shape in {s.group: s for s in rank.collectives.shapes}.values():
            members.setdefault(shape.group, []).append(rank)
            sizes[shape.group] = shape.ranks
    everybody_here = len({r.node for r in ranks}) == 1 and len(ranks) == ranks[0].header.world_size if ranks else False
    scopes: dict[str, str] = {}
    for group, known in members.items():
        if len({r.node for r in known}) > 1:
            scopes[group] = "inter"
        else:
            scopes[group] = "intra" if everybody_here or len(known) == sizes[group] else ""
    return scopes
