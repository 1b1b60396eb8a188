"""A hang as the analysis finds it, and the ranks of which it finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddlprof.model.hang import RankState

MISSING, LATE, SKIPPED, EXTRA, SHAPE, KIND, ORDER = "missing", "late", "skipped", "extra", "shape", "kind", "order"
NETWORK, WORKER, INPUT, LOCK, STANDS = "network", "worker", "input", "lock", "stands"
ENDED, FAILED, STOPPED, SILENT, DISK, BUSY = "ended", "failed", "stopped", "silent", "disk", "busy"
KILLED = "killed"


@dataclass(frozen=True)
class CollectivePosition:
    """A collective of one group. `seq`: its number in the group."""

    group: str
    dimension: str
    members: tuple[int, ...]
    seq: int
    op: str
    bytes: int


@dataclass(frozen=True)
class HangRank:
    """What one rank does."""

    rank: int
    does: str
    """`collective`, `data`, ..., or how it ended: `ended`, `failed`, `stopped`, `silent`."""
    place: str
    """The user's line of its training thread; empty if unknown."""
    calls: str
    collective: CollectivePosition | None
    for_s: float
    """The seconds for which it does so."""
    note: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hang:
    """Why the job stands still."""

    kind: str
    is_hang: bool
    """False where the ranks wait for one that is at work."""
    ranks: list[int]
    """The ranks that are the cause; all of them where it cannot be told."""
    waiting: list[int]
    """The ranks that wait for these."""
    collective: CollectivePosition | None
    """What the others wait in, or what the ranks disagree on."""
    place: str
    """The line at which the first of `ranks` is; empty if unknown."""
    step: int
    """The number of steps that had ended."""
    for_s: float
    detail: str = ""
    lines: list[HangRank] = field(default_factory=list)


@dataclass(frozen=True)
class Standing:
    """One rank. `collective`: the one in which it waits; None if it waits for none."""

    number: int
    does: str
    state: RankState | None
    collective: CollectivePosition | None
    note: str = ""


def hang_of_kind(
    kind: str,
    of: Sequence[int],
    waiting: Iterable[int],
    place: CollectivePosition | None,
    ranks: Mapping[int, Standing],
    detail: str,
) -> Hang:
    states = [rank.state for rank in ranks.values() if rank.state is not None]
    first = ranks[of[0]].state
    shown = first.thread.place if first is not None and ranks[of[0]].does != ENDED else ""
    if kind == LATE and first is not None and first.stood_at:
        shown = first.stood_at
    if kind == LOCK and first is not None and not shown:
        shown = first.threads[0].place
    return Hang(
        kind,
        kind != BUSY,
        list(of),
        sorted(waiting),
        place,
        shown,
        max(state.step for state in states),
        max(state.since_step_s for state in states),
        detail,
    )
