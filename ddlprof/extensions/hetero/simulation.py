"""Simulates one step of a strategy: when each device computes, and when each link carries gradients.

A device does one thing at a time. A transfer occupies all links on its way for its whole duration: a latency plus the
bytes over the speed of the slowest link. A collective waits for all devices, and collectives run one after another.
HeteroG's simulator assumes the same (Yi et al., CoNEXT 2020).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ddlprof.extensions.hetero.devices import Devices
from ddlprof.extensions.hetero.problem import DeviceWork, Problem, SplitStrategy

Lane: TypeAlias = "tuple[str, int]"
"""Something that only one transfer or computation can use at a time: (device, its index), (out, machine), (in,
machine), (link, machine) or `COLLECTIVES`."""
COLLECTIVES: Lane = ("collectives", -1)
"""The queue of all collectives of the process group."""
_ANSWERS = 1 << 20
"""A priority for answers of servers, which come after everything that was ready at the same time."""


class Slice(NamedTuple):
    """An interval in which something was in use."""

    lane: Lane
    name: str
    group: int
    """The group; -1: none."""
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class SimulatedStep:
    step_s: float
    compute_s: float
    """The computing time of the device that computes longest, all parts together."""
    slowest: int
    """The index of that device."""
    idle_s: tuple[float, ...]
    """For each device the time in which it does not compute; the whole step if it is not used."""
    order: tuple[int, ...]
    """The groups in the order in which their gradients start to travel."""
    slices: tuple[Slice, ...] = field(default=(), repr=False)
    """All intervals, unordered; empty unless `traced`."""

    @property
    def exposed_s(self) -> float:
        """The time of the step beyond the longest computation."""
        return max(self.step_s - self.compute_s, 0.0)


class _Transfer(NamedTuple):
    name: str
    group: int
    lanes: tuple[Lane, ...]
    seconds: float
    rank_s: float
    """The seconds from its start to the end of the step along what must follow it: the upward rank of HEFT."""
    needs: tuple[int, ...]
    """The devices whose gradients it waits for."""
    to: tuple[int, ...]
    """The devices that have the sum when it ends; empty: a server has received one more share."""


def simulate(problem: Problem, strategy: SplitStrategy, traced: bool = False) -> SimulatedStep:
    """Simulates the step. The strategy uses at least one device, and its servers are among the used devices."""
    used = strategy.used
    works = {device: problem.times.work(device, strategy.samples[device]) for device in used}
    exchange = _Exchange(problem, strategy, traced)
    for device, work in works.items():
        exchange.computed(device, work)
    if len(used) > 1:
        exchange.run()
    end_s = max(exchange.updated(device, work) for device, work in works.items())
    totals = [works[device].total_s if device in works else 0.0 for device in range(len(problem.devices))]
    slowest = max(used, key=lambda device: totals[device])
    return SimulatedStep(
        end_s, totals[slowest], slowest, tuple(end_s - total for total in totals),
        tuple(exchange.order), tuple(exchange.slices),
    )  # fmt: skip


_Entry: TypeAlias = "tuple[float, int, float, _Transfer]"
"""(priority, number, time when ready, transfer). The smallest goes first."""


class _Exchange:
    """The exchange of the devices' gradients."""

    def __init__(self, problem: Problem, strategy: SplitStrategy, traced: bool) -> None:
        self.order: list[int] = []
        self.slices: list[Slice] = []
        self._problem, self._strategy, self._traced = problem, strategy, traced
        self._ready: dict[tuple[int, int], float] = {}
        """When a device has its gradient of a group."""
        self._done: dict[int, float] = {}
        """When a device has everything for its update."""
        self._free: dict[Lane, float] = {}
        self._waiting: list[tuple[float, int, _Transfer]] = []
        """Transfers that wait for gradients."""
        self._answers: dict[int, list[_Transfer]] = {}
        self._shares_left: Counter[int] = Counter()
        self._summed: dict[int, float] = {}
        """When a server has all shares that have arrived so far."""

    def computed(self, device: int, work: DeviceWork) -> None:
        """Schedules forward and backward of a device."""
        groups, now = self._problem.groups, work.before_s
        self._show(("device", device), "input", -1, 0.0, now)
        forward, backward = range(len(groups)), range(len(groups) - 1, -1, -1)
        for name, seconds, numbers in (
            ("forward", work.forward_s, forward),
            ("backward", work.backward_s, backward),
        ):
            for group in numbers:
                begin, now = now, now + seconds * groups[group].share
                self._show(("device", device), name, group, begin, now)
                self._ready[group, device] = now
        self._done[device] = now

    def updated(self, device: int, work: DeviceWork) -> float:
        """Schedules the update of a device; returns when it ends."""
        end = self._done[device] + work.update_s
        self._show(("device", device), "optimizer", -1, self._done[device], end)
        return end

    def run(self) -> None:
        """Starts transfers that are ready and whose links are free, in their order, until all are done."""
        for number, transfer in enumerate(_transfers(self._problem, self._strategy)):
            if transfer.needs:
                at = max(self._ready[transfer.group, device] for device in transfer.needs)
                self._waiting.append((at, number, transfer))
                self._shares_left[transfer.group] += not transfer.to
            else:
                self._answers.setdefault(transfer.group, []).append(transfer)
        heapq.heapify(self._waiting)
        able: list[_Entry] = []
        now = 0.0
        while self._waiting or able:
            while self._waiting and self._waiting[0][0] <= now:
                at, number, transfer = heapq.heappop(self._waiting)
                heapq.heappush(able, (-transfer.rank_s if self._strategy.by_rank else at, number, at, transfer))
            able = self._begun(able, now)
            soonest = [self._free_at(entry[3]) for entry in able]
            if self._waiting:
                soonest.append(self._waiting[0][0])
            now = max(now, min(soonest, default=now))

    def _begun(self, able: list[_Entry], now: float) -> list[_Entry]:
        """Starts what can start now. Returns a heap of what cannot."""
        blocked: list[_Entry] = []
        while able:
            entry = heapq.heappop(able)
            if self._free_at(entry[3]) > now:
                blocked.append(entry)
            else:
                self._begin(entry[3], now)
        heapq.heapify(blocked)
        return blocked

    def _free_at(self, transfer: _Transfer) -> float:
        return max(self._free.get(lane, 0.0) for lane in transfer.lanes)

    def _begin(self, transfer: _Transfer, now: float) -> None:
        group, end = transfer.group, now + transfer.seconds
        for lane in transfer.lanes:
            self._free[lane] = end
            self._show(lane, transfer.name, group, now, end)
        if group not in self.order:
            self.order.append(group)
        for device in transfer.to:
            self._done[device] = max(self._done[device], end)
        if not transfer.to:
            self._arrived(group, end)

    def _arrived(self, group: int, end: float) -> None:
        """Notes that a server has one more share. With the last share it sends the sum back."""
        server = self._strategy.servers[group]
        assert server is not None
        self._summed[group] = summed = max(self._summed.get(group, self._ready[group, server]), end)
        self._shares_left[group] -= 1
        if self._shares_left[group]:
            return
        self._done[server] = max(self._done[server], summed)
        for number, answer in enumerate(self._answers[group]):
            heapq.heappush(self._waiting, (summed, _ANSWERS * (group + 1) + number, answer))

    def _show(self, lane: Lane, name: str, group: int, begin: float, end: float) -> None:
        if self._traced and end > begin:
            self.slices.append(Slice(lane, name, group, begin, end))


def _transfers(problem: Problem, strategy: SplitStrategy) -> Iterator[_Transfer]:
    """All transfers of a step. Groups that backward reaches first come first."""
    used, devices = strategy.used, problem.devices
    update_s = max(problem.times.work(device, strategy.samples[device]).update_s for device in used)
    for group in range(len(problem.groups) - 1, -1, -1):
        size = problem.groups[group].gradient_bytes
        if not size:
            continue
        server = strategy.servers[group]
        if server is None:
            lanes, seconds = ring(devices, used, size)
            yield _Transfer("all-reduce", group, lanes, seconds, seconds + update_s, used, used)
            continue
        seconds_of = {device: transfer_s(devices, device, server, size) for device in used if device != server}
        slowest = max(seconds_of.values(), default=0.0)
        for device, seconds in seconds_of.items():
            lanes, _ = path(devices, device, server)
            yield _Transfer("push", group, lanes, seconds, seconds + slowest + update_s, (device,), ())
        for device, seconds in seconds_of.items():
            lanes, _ = path(devices, server, device)
            yield _Transfer("pull", group, lanes, seconds, seconds + update_s, (), (device,))


def ring(devices: Devices, used: tuple[int, ...], size: float) -> tuple[tuple[Lane, ...], float]:
    """The links that an all-reduce uses, and its seconds: 2 (k - 1) messages of a k-th of the bytes among k devices."""
    members = len(used)
    machines = [devices.all[device].machine for device in used]
    lanes: list[Lane] = [COLLECTIVES]
    for machine in sorted(set(machines)):
        if machines.count(machine) > 1:
            lanes.append(("link", machine))
        if len(set(machines)) > 1:
            lanes += [("out", machine), ("in", machine)]
    messages = 2 * (members - 1)
    return tuple(lanes), messages * (size / members / 1e9 / devices.slowest_gb_s(used) + devices.latency_s)


def path(devices: Devices, sender: int, receiver: int) -> tuple[tuple[Lane, ...], float]:
    """The links from one device to another, and the GB/s of the slowest of them."""
    here, there = devices.all[sender].machine, devices.all[receiver].machine
    if here == there:
        return (("link", here),), devices.machines[here].link_gb_s
    slowest = min(devices.machines[here].network_gb_s or 0.0, devices.machines[there].network_gb_s or 0.0)
    return (("out", here), ("in", there)), slowest


def transfer_s(devices: Devices, sender: int, receiver: int, size: float) -> float:
    """Seconds of a transfer of so many bytes from one device to another."""
    return size / 1e9 / path(devices, sender, receiver)[1] + devices.latency_s
