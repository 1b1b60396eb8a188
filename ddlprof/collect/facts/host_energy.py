"""The energy of the machine's processors and their memory, from Linux's powercap (RAPL of Intel and AMD).

Since 2020 the kernel lets only root read these files (CVE-2020-8694), unless the machine's owner allows others.
"""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_DOMAINS = ("package", "dram")
"""Beginnings of the names of domains that do not contain each other."""


class HostEnergy:
    """Adds up the energy of all processors and their memory. The counters begin anew at a limit that each tells."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._domains: list[_Domain] | None = None

    def joules(self) -> float | None:
        """The energy in joules since the first call; None where the counters may not be read, or there are none."""
        if self._domains is None:
            self._domains = _domains(self._powercap)
        try:
            return round(sum([domain.joules() for domain in self._domains]), 3) if self._domains else None
        except OSError:
            self._domains = []
            return None


class _Domain:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._most = _number(folder / "max_energy_range_uj")
        self._last = _number(self._file)
        self._taken = 0

    def joules(self) -> float:
        """The energy since the domain was opened. Raises OSError where it cannot be read."""
        now = _number(self._file)
        self._taken += now - self._last if now >= self._last else self._most - self._last + now
        self._last = now
        return self._taken / 1e6


def _domains(powercap: Path) -> list[_Domain]:
    """The domains that may be read; none where any may not, as a part would pass for the whole."""
    try:
        named = [(folder, (folder / "name").read_text()) for folder in sorted(powercap.glob("*-rapl:*"))]
        return [_Domain(folder) for folder, name in named if name.startswith(_DOMAINS)]
    except (OSError, ValueError):
        return []


def _number(file: Path) -> int:
    return int(file.read_text())
