"""Clock and power of a device, read while something runs."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.extensions.probe.device import ProbeDevice, State, watched


class Cuda:
    """As much of torch.cuda as a probe asks for."""

    def __init__(self, tells_power: bool) -> None:
        self.tells_power = tells_power

    def is_available(self) -> bool:
        return True

    def set_device(self, index: int) -> None:
        self.index = index

    def clock_rate(self, index: int) -> int:
        return 1400 + index

    def power_draw(self, index: int) -> int:
        if not self.tells_power:
            raise RuntimeError("not supported")
        return 300_000


def gpu(hip: str | None = None, tells_power: bool = True) -> ProbeDevice:
    torch: Any = SimpleNamespace(cuda=Cuda(tells_power), version=SimpleNamespace(hip=hip))
    return ProbeDevice(torch, 1)


def read(device: ProbeDevice) -> State:
    state = State()
    with watched(device, state):
        until = time.monotonic() + 30
        while len(state.clocks_mhz) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    return state


@pytest.mark.parametrize(("hip", "power_w"), [(None, 300.0), ("6.2", 300_000.0)])
def test_means_of_clock_and_power_with_the_units_of_the_driver(hip: str | None, power_w: float) -> None:
    state = read(gpu(hip))
    assert (state.clock_mhz, state.power_w) == (1401, power_w)


def test_a_driver_that_does_not_tell_the_power_still_tells_the_clock() -> None:
    state = read(gpu(tells_power=False))
    assert (state.clock_mhz, state.power_w) == (1401, None)
    assert len(state.clocks_mhz) >= 2


def test_nothing_read_is_not_known() -> None:
    assert (State().clock_mhz, State().power_w) == (None, None)
