"""What a job computes and exchanges: layers in groups, as their gradients travel, and a device's time for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ddlprof.hetero.devices import Devices

BUCKET_BYTES = 25 * 2**20
"""What DistributedDataParallel reduces at once (`bucket_cap_mb`)."""
FIRST_BUCKET_BYTES = 2**20
"""The same of the gradients that backward has first, so that communication begins soon."""


@dataclass(frozen=True)
class GradientBucket:
    """One layer, or several in a row whose gradients are exchanged together."""

    name: str
    gradient_bytes: float
    share: float
    """Of the computation of forward, and of that of backward."""
    layers: int = 1


def grouped(
    layers: Sequence[GradientBucket], most_bytes: float = BUCKET_BYTES, first_bytes: float = FIRST_BUCKET_BYTES
) -> tuple[GradientBucket, ...]:
    """The layers in forward order, put together as DistributedDataParallel puts gradients into buckets.

    It goes from the last layer to the first, and a bucket is closed once it has so many bytes.
    """
    groups: list[list[GradientBucket]] = [[]]
    for layer in reversed(layers):
        limit = first_bytes if len(groups) == 1 else most_bytes
        if groups[-1] and sum(each.gradient_bytes for each in groups[-1]) >= limit:
            groups.append([])
        groups[-1].append(layer)
    if len(groups) > 1 and not any(each.gradient_bytes for each in groups[-1]):  # nothing to exchange for it
        first = groups.pop()
        groups[-1] += first
    return tuple(_joined(group[::-1]) for group in reversed(groups))


def _joined(layers: Sequence[GradientBucket]) -> GradientBucket:
    first, last = layers[0], layers[-1]
    return GradientBucket(
        name=first.name if len(layers) == 1 else f"{first.name} to {last.name}",
        gradient_bytes=sum(each.gradient_bytes for each in layers),
        share=sum(each.share for each in layers),
        layers=sum(each.layers for each in layers),
    )


@dataclass(frozen=True)
class Work:
    """The seconds of one device for its samples of a step."""

    forward_s: float
    backward_s: float
    before_s: float = 0.0
    """Input, copies and whatever else is not computation."""
    update_s: float = 0.0
    """The optimizer's, after all gradients are there."""

    @property
    def total_s(self) -> float:
        """Everything, without any communication."""
        return self.before_s + self.forward_s + self.backward_s + self.update_s


class Times(Protocol):
    """Tells how fast a device is; the same answer for the same question, and quickly, as searches ask thousands of
    times."""

    def work(self, device: int, samples: int) -> Work:
        """The step of `samples` samples on the device alone. Raises `DdlprofError` where it cannot be told."""

    def most(self, device: int) -> int | None:
        """The most samples that its memory holds; None: not known."""


class Taken(NamedTuple):
    """The seconds that an exchange takes from the computing of every device, where one processor does both."""

    all_reduced: float
    served: float
    """By a parameter server."""


@dataclass(frozen=True)
class Problem:
    """A job, and the devices that it could use."""

    devices: Devices
    groups: tuple[GradientBucket, ...]
    """In forward order."""
    batch: int
    """The samples of one update over all devices."""
    times: Times
    taken_s: tuple[Taken, ...] = ()
    """Of each group; empty: nothing is taken, as on GPUs."""


@dataclass(frozen=True)
class Strategy:
    """How a step is done. Everything by index: of devices, of groups in forward order."""

    samples: tuple[int, ...]
    """For each device; 0: it is not used."""
    servers: tuple[int | None, ...]
    """For each group the device that adds up its gradients and hands them out; None: all-reduce."""
    by_rank: bool = False
    """Which of several transfers that could begin goes first: that of the highest upward rank; False: the one that was
    ready first, which is what DistributedDataParallel does."""

    @property
    def used(self) -> tuple[int, ...]:
        """The devices that get samples."""
        return tuple(index for index, count in enumerate(self.samples) if count)
