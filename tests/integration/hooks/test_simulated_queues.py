"""Devices whose launches wait for each other: one queue for all streams, and queues that are full."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scripts.lab.simulated_cuda import Machine
from tests.integration.hooks.simulated_runs import MS, Training

LONG = 400
"""Steps of 100 ms: several anchors of the clock are recorded, most while the device is behind."""


@pytest.mark.parametrize("before_ms", [0, 3_000])
def test_one_queue_for_all_streams(before_ms: int, machine: Machine, profiled: Any) -> None:
    """No stream is idle then, so the device passes an anchor of the clock as late as it is behind; not the first."""
    machine.one_queue = True
    started_ns = machine.clock.perf_counter_ns()
    ended_ns = []

    def loop() -> None:
        training = Training(busy_ms=100)
        for _ in range(2):
            torch.cuda._sleep(before_ms * MS)
        for step in range(LONG):
            training.step()
            ended_ns.append(machine.free_ns(machine.current()) - started_ns)
            if step % 50 == 49:
                torch.cuda.synchronize()

    run = profiled(loop)
    assert [row.start_ns + row.step_ns for row in run.rows] == pytest.approx(ended_ns, abs=MS)
    assert run.notes == {}


def test_a_queue_that_is_full(machine: Machine, profiled: Any) -> None:
    """Our events take places, too, and wait for them: steps are those of the device nevertheless."""
    machine.pending = 16
    started_ns = machine.clock.perf_counter_ns()
    ended_ns = []

    def loop() -> None:
        training = Training(busy_ms=5)
        for _ in range(60):
            training.step()
            ended_ns.append(machine.free_ns(machine.current()) - started_ns)
        assert machine.free_ns(machine.current()) - machine.clock.perf_counter_ns() < 3 * 5 * MS

    run = profiled(loop)
    assert [row.start_ns + row.step_ns for row in run.rows] == pytest.approx(ended_ns, abs=100)
    assert run.notes == {}
