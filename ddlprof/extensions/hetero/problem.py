"""What a job computes and exchanges: layers in groups whose gradients travel together, and devices' times for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ddlprof.extensions.hetero.devices import Devices

BUCKET_BYTES = 25 * 2**20
"""The bytes that DistributedDataParallel reduces at once (`bucket_cap_mb`)."""
FIRST_BUCKET_BYTES = 2**20
"""The size of its first bucket, which is smaller so that communication begins soon."""


@dataclass(frozen=True)
class GradientBucket:
    """One layer, or consecutive layers whose gradients are exchanged together."""

    name: str
    gradient_bytes: float
    share: float
    """The share of the computation of forward; the same of backward."""
    layers: int = 1


def grouped(layers: Sequence[GradientBucket]) -> tuple[GradientBucket, ...]:
    """The layers in forward order, grouped as DistributedDataParallel groups gradients into buckets.

    It goes from the last layer to the first. A bucket is closed once it has its bytes.
    """
    groups: list[list[GradientBucket]] = [[]]
    for layer in reversed(layers):
        limit = FIRST_BUCKET_BYTES if len(groups) == 1 else BUCKET_BYTES
        if groups[-1] and sum(each.gradient_bytes for each in groups[-1]) >= limit:
            groups.append([])
        groups[-1].append(layer)
    if len(groups) > 1 and not any(each.gradient_bytes for each in groups[-1]):  # nothing to exchange
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
class DeviceWork:
    """The seconds that one device needs for its samples of a step."""

    forward_s: float
    backward_s: float
    before_s: float = 0.0
    """Seconds of input, copies and other work that is not computation."""
    update_s: float = 0.0
    """Seconds of the optimizer's update, once all gradients are there."""

    @property
    def total_s(self) -> float:
        """All of it, without communication."""
        return self.before_s + self.forward_s + self.backward_s + self.update_s


class DeviceTimes(Protocol):
    """Tells how fast a device is.

    The same question must always get the same answer, and quickly, as a search asks thousands of times.
    """

    def work(self, device: int, samples: int) -> DeviceWork:
        """The time of a step with `samples` samples on the device alone. Raises `DdlprofError` if it is not known."""

    def most(self, device: int) -> int | None:
        """The most samples that fit into its memory; None: not known."""


@dataclass(frozen=True)
class Problem:
    """A job and the devices that it could use."""

    devices: Devices
    groups: tuple[GradientBucket, ...]
    """The groups in forward order."""
    batch: int
    """The number of samples of one update over all devices."""
    times: DeviceTimes


@dataclass(frozen=True)
class SplitStrategy:
    """How a step is done. Devices and groups (in forward order) are given by index."""

    samples: tuple[int, ...]
    """The number of samples for each device; 0: not used."""
    servers: tuple[int | None, ...]
    """For each group the device that sums its gradients and sends them back; None: all-reduce."""
    by_rank: bool = False
    """Which of several transfers that could start goes first. True: the one with the highest upward rank. False: the
    one that was ready first, as in DistributedDataParallel."""

    @property
    def used(self) -> tuple[int, ...]:
        """The devices that have samples."""
        return tuple(index for index, count in enumerate(self.samples) if count)
