"""What `StepAssembler` adds up while a step is under way, and the step that it makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddlprof.collect.steps.batch_totals import Made
from ddlprof.collect.steps.frozen import FrozenForwards
from ddlprof.model.records import NEVER, StepRow


@dataclass(slots=True)
class Segment:
    """What happened since a batch was asked for and is not booked yet. `loader` is None before any batch."""

    loader: int | None = None
    data_ns: int = 0
    data_fetch_ns: float = 0.0
    data_prep_ns: float = 0.0
    split_seen: bool = False
    samples: int = 0
    made: list[Made] = field(default_factory=list)
    epoch: bool = False
    delivered: bool = False
    gap_ns: int = 0
    """The time between the batch and the first forward."""
    frozen: FrozenForwards = field(default_factory=FrozenForwards)
    begin: int | None = None
    """When its batch was asked for, or without a loader when its first forward without gradients began."""
    end: int = 0
    """When its batch or its last forward without gradients was there."""


@dataclass(slots=True)
class Passes:
    """Backward passes that lead to the next update of some optimizer.

    Several over the same whole batch (real and generated samples, the evaluations of L-BFGS) are one: they do not add
    up gradients of more samples.
    """

    count: int = 0
    total: int = 0
    """Calls of `backward` so far."""
    batch_samples: int | None = None
    """The samples of the last batch that was delivered."""
    forward_samples: int = 0
    """The samples of the first forward since the last backward."""
    unused: int = 0
    """Batches that were delivered and that no pass has used yet."""

    def backward(self) -> None:
        """Another pass begins."""
        self.total += 1
        part_of_batch = self.batch_samples is None or 0 < self.forward_samples < self.batch_samples
        self.count += self.unused > 0 or part_of_batch or not self.count
        self.unused, self.forward_samples = max(0, self.unused - 1), 0

    def end(self) -> int:
        """How many led to the update that was made just now."""
        count, self.count, self.unused = self.count, 0, 0
        return count


@dataclass(slots=True)
class Sums:
    compute: int = 0
    idle: int = 0
    """Part of `compute` that was none."""
    data: int = 0
    data_fetch: float = 0.0
    data_prep: float = 0.0
    split_seen: bool = False
    h2d: int = 0
    comm: int = 0
    other: int = 0
    rollout: int = 0
    """Part of `other`."""
    microbatches: int = 0
    """The most backward passes that led to one update."""
    samples: int = 0
    forward_samples: int = 0
    flags: int = 0
    unseen: int = 0
    unawaited: int = 0
    device_lag_ns: int | None = None
    collectives: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """A finished step: the row, and the collectives issued in it (records of `hooks.collectives`)."""

    row: StepRow
    collectives: list[Any]
    start: int
    """Absolute start, on the clock of the events."""
    saw_forward: bool
    """An outermost forward with gradients was seen."""
    unseen: int = 0
    """Collectives that torch counted and the hooks did not see."""
    marks: int = 0
    """`Recorder.marks` at its end."""
    unawaited: int = 0
    """Collectives on streams of which no wait has ever been seen."""


def share_wait(collectives: Iterable[Any], chosen: bool, begin: int, since: int, end: int) -> None:
    """Divides a wait among the collectives that it was for, in their order: each claims the time until its end.

    `chosen`: the wait was for just these, and not for all that were issued. `begin`: when it began; what counts is the
    time between `since` and `end`.
    """
    for collective in collectives:
        if collective.need is None:
            collective.need = begin
            stop = end if collective.end is None or chosen else min(collective.end, end)
            collective.exposed = max(0, stop - since)
            since = max(since, stop)


def relative_us(time: int | None, start: int) -> int:
    """Microseconds since `start` as stored in CollectiveTimes; NEVER for None."""
    return NEVER if time is None else min(max(0, (time - start) // 1000), NEVER - 1)
