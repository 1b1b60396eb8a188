"""What `StepAssembler` adds up while a step is under way, and where its waits and collectives lie in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddlprof.collect.steps.no_grad import NoGradForwards, NoGradTimes
from ddlprof.model.records import Flag, LoaderCost

UNOBSERVED = (
    "not measured where torch counted collectives and none was seen ({count} in step {step}, the first such): "
    "they were not issued through torch.distributed"
)
UNAWAITED = (
    "not measured as long as no wait for the streams that collectives are issued on is seen ({count} in step {step}, "
    "the first such): the device may wait for them unnoticed"
)
"""What is said of the first step of which `FinishedStep.unobserved` or `unawaited` is not 0."""


class BatchCost(NamedTuple):
    """What it took to make one batch; all fields but the first are those of `Fetch`."""

    samples: int
    cpu: int
    asked: int | None
    storage: int | None
    blocked: int | None = None


class LoaderTotals:
    """The cost of all batches that fed training, as sums since the start of the run."""

    def __init__(self) -> None:
        self._samples = self._cpu = 0
        self._asked: int | None = 0
        self._storage: int | None = 0
        self._blocked: int | None = 0

    def add(self, batches: Iterable[BatchCost]) -> None:
        """Adds batches that fed training."""
        for batch in batches:
            self._samples += batch.samples
            self._cpu += batch.cpu
            self._asked = _plus(self._asked, batch.asked)
            self._storage = _plus(self._storage, batch.storage)
            self._blocked = _plus(self._blocked, batch.blocked)

    def cost(self, step: int) -> LoaderCost | None:
        """The sums up to the step of this number; None if no batch with samples has been added."""
        if not self._samples:
            return None
        return LoaderCost(step, self._samples, self._cpu, self._asked, self._storage, self._blocked)


def _plus(total: int | None, more: int | None) -> int | None:
    """Adds to a total, which stays unknown (None) once one value was unknown."""
    return None if total is None or more is None else total + more


@dataclass(slots=True)
class Segment:
    """The time since a batch was requested, which is not booked yet. `loader` is None before the first batch."""

    loader: int | None = None
    data_ns: int = 0
    data_fetch_ns: float = 0.0
    data_prep_ns: float = 0.0
    split_seen: bool = False
    samples: int = 0
    costs: list[BatchCost] = field(default_factory=list)
    epoch: bool = False
    delivered: bool = False
    gap_ns: int = 0
    """The time between the batch and the first forward."""
    no_grad: NoGradForwards = field(default_factory=NoGradForwards)
    begin: int | None = None
    """When the batch was requested; without a loader, when the first forward without gradients began."""
    end: int = 0
    """When the batch was delivered, or the last forward ended."""

    def add_delivery(self, delivery: Sequence[Any], data_ns: int, samples: int | None) -> None:
        """Adds what the loader says of a batch that was waited for so long: the shares of fetching and preparing in the
        wait, and what making it cost."""
        fetch_share, prep_share, *cost = delivery
        self.split_seen = True
        self.data_fetch_ns += fetch_share * data_ns
        self.data_prep_ns += prep_share * data_ns
        if samples:
            self.costs.append(BatchCost(samples, *cost))


class Roles(dict[int, bool]):
    """Whether each loader feeds training, of the latest loaders: a script may make one for each of its steps."""

    most = 10_000

    def __setitem__(self, loader: int, training: bool) -> None:
        super().__setitem__(loader, training)
        if len(self) > self.most:
            del self[next(iter(self))]


@dataclass(slots=True)
class Passes:
    """Counts the backward passes that lead to the next update of some optimizer.

    Several passes over the same whole batch (real and generated samples, the evaluations of L-BFGS) count as one, as
    they do not accumulate gradients of more samples.
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
    later_forwards: int = 0
    """Forwards after the first one since a backward, whose own backwards may follow, as in a stage of a pipeline."""
    later_samples: int = 0
    later_backwards: int = 0
    """Backwards that no forward came before since the last one."""

    def forward(self, samples: int, first: bool) -> None:
        """A forward begins. `first`: whether it is the first one since the last backward."""
        if first:
            self.forward_samples = samples
        else:
            self.later_forwards += 1
            self.later_samples += samples

    def of_later_forwards(self) -> int:
        """The samples of forwards that had backwards of their own later on; none where there are more forwards, such as
        those of a trunk and its heads: backwards are then of several losses of the same samples."""
        return self.later_samples if self.later_backwards == self.later_forwards else 0

    def backward(self, later: bool) -> None:
        """Another pass begins. `later`: no forward came before it since the last one."""
        self.later_backwards += later
        self.total += 1
        part_of_batch = self.batch_samples is None or 0 < self.forward_samples < self.batch_samples
        self.count += self.unused > 0 or part_of_batch or not self.count
        self.unused, self.forward_samples = max(0, self.unused - 1), 0

    def end(self) -> int:
        """Returns the number of passes that led to the update just made, and begins anew."""
        count, self.count, self.unused = self.count, 0, 0
        self.later_forwards = self.later_samples = self.later_backwards = 0
        return count


@dataclass(slots=True)
class Sums:
    """The sums of the step under way, in nanoseconds unless a comment says otherwise."""

    compute: int = 0
    idle: int = 0
    """The part of `compute` in which nothing was computed."""
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
    unobserved: int = 0
    """A count, as is `unawaited`: see `FinishedStep`."""
    unawaited: int = 0
    device_lag_ns: int | None = None
    collectives: list[Any] = field(default_factory=list)

    def add_trained(self, segment: Segment) -> None:
        """Adds a segment whose batch fed training."""
        self.data += segment.data_ns
        self.data_fetch += segment.data_fetch_ns
        self.data_prep += segment.data_prep_ns
        self.split_seen |= segment.split_seen
        self.samples += segment.samples
        self.other += segment.gap_ns
        if segment.epoch:
            self.flags |= Flag.EPOCH_START

    def add_evaluated(self, segment: Segment) -> None:
        """Adds a segment whose batch fed an evaluation, which is no part of a training step's work."""
        self.other += segment.data_ns + segment.gap_ns
        self.flags |= Flag.EVALUATION

    def add_no_grad(self, no_grad: NoGradTimes) -> None:
        """Adds the forwards without gradients of a segment."""
        self.compute += no_grad.teaching_ns
        self.other += no_grad.acting_ns + no_grad.evaluating_ns
        self.rollout += no_grad.acting_ns + no_grad.after_acting_ns
        if no_grad.evaluates:
            self.flags |= Flag.EVALUATION


def wait_end(collectives: Sequence[Any], bounded: Any, begin: int, time: int) -> int:
    """When a wait that lasted until `time` at the latest was over. `bounded`: with the last of the collectives (True,
    where all their ends are known), at this time, or not earlier (None)."""
    if bounded is not True:
        return min(time, max(begin, bounded)) if bounded else time
    ends = [each.end for each in collectives if each.end is not None]
    return min(time, max([begin, *ends])) if len(ends) == len(collectives) else time


def share_wait(collectives: Iterable[Any], chosen: bool, begin: int, since: int, end: int) -> None:
    """Divides a wait among its collectives, in their order: each one gets the time up to its own end as exposed time.

    `chosen`: the wait was for just these, and not for all that were issued. `begin`: when the wait began; the time that
    is divided is that between `since` and `end`. All times are nanoseconds.

    A wait for a collective that went on after an earlier wait for all counts: the earlier one did not wait for it.
    """
    for collective in collectives:
        went_on = chosen and collective.end is not None and collective.end > begin
        if collective.need is None or went_on:
            collective.need = begin
            stop = end if collective.end is None or chosen else min(collective.end, end)
            collective.exposed = (collective.exposed or 0) + max(0, stop - since)
            since = max(since, stop)


def place_collectives(collectives: Sequence[Any], step_end: int) -> bool:
    """Puts collectives whose durations are known onto the timeline of a device that does not say when they end.

    Sets ready, end and exposed time of the collectives of a step, which are in the order of issue. The work of a
    process group is a queue on one stream of the device: one collective at a time. Where computation waited, the last
    collective that it waited for ended when the wait did; each one before ended at the latest when the next one of its
    group began. This is exact inside the waits, where it matters, because there is no gap between two collectives
    there; the other collectives are placed as late as they can have run.

    Returns False, and changes nothing, unless the duration of each is known. Raises nothing.
    """
    if not collectives or any(each.duration is None for each in collectives):
        return False
    waits = _wait_ends(collectives)
    left = {need: end - need for need, end in waits.items()}
    begins: dict[str, int] = {}
    following: dict[str, Any] = {}
    for each in reversed(collectives):
        latest = begins.get(each.group, step_end)
        if each.need is not None:
            wait_end = waits[each.need]
            latest = min(latest, wait_end) if each.group in begins else wait_end
        begin = latest - each.duration
        each.end = latest
        if each.need is not None:
            claimed = max(0, min(left[each.need], latest - max(begin, each.need)))
            left[each.need] -= claimed
            each.exposed = claimed
        after = following.get(each.group)
        if after is not None and after.need is not None and after.ready == latest and after.need < latest:
            after.ready = min(after.ready, max(after.need, begin))  # it was there already, behind this one
        each.ready = begin
        begins[each.group], following[each.group] = begin, each
    return True


def _wait_ends(collectives: Sequence[Any]) -> dict[int, int]:
    """The end of each wait for some of these collectives, by its begin."""
    waits: dict[int, int] = {}
    for each in collectives:
        if each.need is not None:
            waits[each.need] = waits.get(each.need, each.need) + (each.exposed or 0)
    return waits
