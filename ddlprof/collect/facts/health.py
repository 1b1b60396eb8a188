"""Reads the counters of `ddlprof.model.health`: of the machine from Linux's files, of the device from its driver.

Everything here is readable without root on a usual machine. What is not there, or may not be read, is left out without
a word: no class of a step and no memory figure comes from it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from ddlprof.base.guarded import attempt
from ddlprof.model.health import EVERY_S, HealthReading

Readings = Iterator[tuple[str, str, int]]
"""Counter, place, value."""

_SWAP = (b"pswpin", b"pswpout")
_STEAL = 8
"""The place of stolen time among the words of the first line of /proc/stat."""
_INFINIBAND = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
_INFINIBAND_HARDWARE = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans")


class HealthSampler:
    """Tells what has changed, once in ten seconds. One object serves one thread."""

    def __init__(
        self,
        origin_ns: int,
        clock: Callable[[], int],
        of_device: Callable[[], dict[tuple[str, str], int]],
        root: Path = Path("/"),
    ) -> None:
        self._origin_ns = origin_ns
        self._clock = clock
        self._of_device = of_device
        self._machine = _Machine(root)
        self._last: dict[tuple[str, str], int] = {}
        self._next_ns: int | None = None

    def changes(self, last: bool = False) -> list[HealthReading]:
        """The counters that have changed, if it is time to read them. `last`: whether it is the end of the training."""
        now = self._clock()
        if self._next_ns is not None and now < self._next_ns and not last:
            return []
        self._next_ns = now + round(EVERY_S * 1e9)
        found = {**self._machine.read(), **(attempt(self._of_device) or {})}
        changed = {key: value for key, value in found.items() if self._last.get(key) != value}
        self._last.update(changed)
        return [HealthReading(now - self._origin_ns, *key, value) for key, value in changed.items()]


class _Machine:
    """The files of the machine. One that could not be read is not read again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: list[Callable[[], Readings]] = [
            self._swap, self._steal, self._io, self._quota, self._heat, self._memory, self._tcp, self._network,
            self._infiniband,
        ]  # fmt: skip
        self._ports: list[tuple[str, Path]] | None = None

    def read(self) -> dict[tuple[str, str], int]:
        """All counters that can be read, by name and place; those of one name and place add up."""
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for source in list(self._sources):
            readings = attempt(lambda source=source: list(source()))  # type: ignore[misc]
            if readings is None:
                self._sources.remove(source)
            for name, where, value in readings or ():
                found[name, where] += value
        return found

    def _lines(self, name: str) -> list[bytes]:
        with (self._root / name).open("rb") as file:
            return file.read().splitlines()

    def _swap(self) -> Readings:
        for line in self._lines("proc/vmstat"):
            name, value = line.split()
            if name in _SWAP:
                yield "swap_pages", "", int(value)

    def _steal(self) -> Readings:
        ticks = int(self._lines("proc/stat")[0].split()[_STEAL])
        yield "steal_ms", "", ticks * 1000 // os.sysconf("SC_CLK_TCK")

    def _io(self) -> Readings:
        for line in self._lines("proc/pressure/io"):
            if line.startswith(b"full"):
                yield "io_stall_ms", "", int(line.rpartition(b"total=")[2]) // 1000

    def _quota(self) -> Readings:
        for line in self._lines("sys/fs/cgroup/cpu.stat"):
            name, value = line.split()
            if name == b"throttled_usec":
                yield "cpu_quota_ms", "", int(value) // 1000

    def _heat(self) -> Readings:
        seen: set[bytes] = set()
        for folder in self._found("sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle"):
            package = (folder.parent / "topology/physical_package_id").read_bytes()
            if package not in seen:  # all processors of a package tell the same
                seen.add(package)
                yield "cpu_hot", "", int((folder / "package_throttle_count").read_bytes())

    def _memory(self) -> Readings:
        for controller in self._found("sys/devices/system/edac/mc", "mc[0-9]*"):
            yield "memory_corrected", "", int((controller / "ce_count").read_bytes())
            yield "memory_uncorrected", "", int((controller / "ue_count").read_bytes())

    def _tcp(self) -> Readings:
        names, values = [line.split() for line in self._lines("proc/net/snmp") if line.startswith(b"Tcp:")]
        yield "tcp_retransmits", "", int(values[names.index(b"RetransSegs")])

    def _network(self) -> Readings:
        for line in self._lines("proc/net/dev")[2:]:
            interface, _, values = line.partition(b":")
            received_errors, received_dropped = map(int, values.split()[2:4])
            sent_errors, sent_dropped = map(int, values.split()[10:12])
            where = interface.strip().decode(errors="replace")
            if where != "lo":
                yield "network_errors", where, received_errors + sent_errors
                yield "network_dropped", where, received_dropped + sent_dropped

    def _infiniband(self) -> Readings:
        if self._ports is None:
            ports = self._found("sys/class/infiniband", "*/ports/*")
            self._ports = [(f"{port.parents[1].name}/{port.name}", port) for port in ports]
        for where, port in self._ports:
            for folder, names in (("counters", _INFINIBAND), ("hw_counters", _INFINIBAND_HARDWARE)):
                for name in names:
                    value = attempt(lambda file=port / folder / name: int(file.read_bytes()))  # type: ignore[misc]
                    if value is not None:  # not every port has all of them
                        yield "infiniband_errors", where, value

    def _found(self, folder: str, pattern: str) -> list[Path]:
        """Raises FileNotFoundError where there is none, so that nobody looks again."""
        found = sorted((self._root / folder).glob(pattern))
        if not found:
            raise FileNotFoundError(folder)
        return found
