"""One probe: all measurements one after the other, each with its share of the time."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any

from ddlprof.extensions.probe.collectives import ProbeRanks, RanksFailed, inside, launched
from ddlprof.extensions.probe.device import ProbeDevice, State, watched
from ddlprof.extensions.probe.model import Figure, Probed
from ddlprof.extensions.probe.single_device import copies, launches, memory, precisions, products

_SHARES: Mapping[str, float] = {"products": 0.5, "memory": 0.15, "copies": 0.1, "launches": 0.05, "collectives": 0.2}
"""The shares of the time. Starting processes takes additional time."""

Progress = Callable[[int, int], None]


def probe(seconds: float, instance_type: str | None = None, advance: Progress | None = None) -> Probed | None:
    """Measures for about `seconds`; None on all ranks of torchrun but the first.

    Raises `RanksFailed` if the ranks do not find each other. Other failures are listed in `Probed.missing`.
    """
    import torch

    from ddlprof.collect.facts.machine import instance_type as own_type

    began = time.monotonic()
    index = int(os.environ.get("LOCAL_RANK", "0")) % max(torch.cuda.device_count(), 1)
    device = ProbeDevice(torch, index)  # made before the ranks meet: NCCL takes the current device
    team = ProbeRanks(torch, seconds) if launched() else None
    measured = _Measured(device, began, seconds, advance)
    if team is None or team.rank == 0:
        _alone(measured, seconds)
    try:
        if team is None:
            measured.add("collectives", lambda: inside(device, _SHARES["collectives"] * seconds))
        else:
            team.wait()
            measured.add("collectives", lambda: team.figures(device, _SHARES["collectives"] * seconds))
            team.close()
            if team.rank:
                return None
    finally:
        measured.close()
    return Probed(
        device=device.name,
        is_gpu=device.is_gpu,
        figures=tuple(measured.figures),
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        memory_gib=device.memory_gib,
        instance_type=instance_type or own_type(),
        host=platform.node(),
        torch=str(torch.__version__),
        ranks=team.world if team else _ranks(measured.figures, device),
        nodes=len(team.nodes) if team else 1,
        clock_mhz=measured.state.clock_mhz,
        power_w=measured.state.power_w,
        missing=tuple(measured.missing),
    )


def _alone(measured: _Measured, seconds: float) -> None:
    """Measures one device without the others."""
    device = measured.device
    names = precisions(device)
    with watched(device, measured.state):
        for name in names:
            share = _SHARES["products"] * seconds / len(names)
            measured.add(f"products in {name}", partial(products, device, name, share))
    if device.is_gpu and not measured.state.clocks_mhz:
        measured.missing.append("clock and power: not told by the driver, or nvidia-ml-py is not installed")
    for what, measure in (("memory", memory), ("copies", copies), ("launches", launches)):
        measured.add(what, partial(measure, device, _SHARES[what] * seconds))


class _Measured:
    """What was measured so far, and what could not be."""

    def __init__(self, device: ProbeDevice, began: float, seconds: float, advance: Progress | None) -> None:
        self.device = device
        self.figures: list[Figure] = []
        self.missing: list[str] = []
        self.state = State()
        self._began = began
        self._seconds = seconds
        self._advance = advance

    def add(self, what: str, measure: Callable[[], Iterable[Figure]]) -> None:
        """Keeps what `measure` yields until it ends or fails."""
        try:
            for figure in measure():
                if math.isfinite(figure.value) and figure.value > 0:
                    self.figures.append(figure)
                self._show()
        except RanksFailed as error:
            self.missing.append(f"{what}: {error}")
        except Exception as error:  # not enough memory, an operator missing in this torch, ...
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.missing.append(f"{what}: {first[:200]}")
        self.device.forget()

    def close(self) -> None:
        """Ends the display of progress."""
        if self._advance:
            self._advance(100, 100)

    def _show(self) -> None:
        if self._advance:
            done = (time.monotonic() - self._began) / max(self._seconds, 1e-9)
            self._advance(min(int(100 * done), 99), 100)


def _ranks(figures: list[Figure], device: ProbeDevice) -> int:
    """The number of processes between which collectives were measured, if they were started here."""
    if not any(figure.group == "collectives" for figure in figures):
        return 1
    count: Any = device.torch.cuda.device_count() if device.is_gpu else 2
    return int(count)
