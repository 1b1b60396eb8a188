"""Whole sessions on simulated GPUs that nobody knows as CUDA's: only by what torch has for every kind of device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.generic import Generic
from scripts.lab.simulated_cuda import Machine
from scripts.lab.simulated_cuda.tensors import KERNEL_NS
from tests.integration.hooks.simulated_runs import MS, SMALL_MS, STEPS, Training, replays, timed_steps


@pytest.fixture(autouse=True)
def nobody_knows_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "KINDS", (Generic,))


def test_steps_are_those_of_the_device(profiled: Any) -> None:
    loop, device_ns = timed_steps()
    run = profiled(loop)
    assert run.header.clock == "device"
    assert sum(row.step_ns for row in run.rows[4:]) == pytest.approx(device_ns(), abs=20)
    assert run.median_ms("compute") == pytest.approx(10, abs=SMALL_MS)
    assert run.notes["device"].startswith("not measured: use and power of the device")


def test_a_host_that_waits_for_its_device_waits_for_computing(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training = Training(busy_ms=20)
        for _ in range(STEPS):
            training.optimizer.zero_grad()
            loss = training.model(training.x).sum()
            torch.cuda.current_stream().synchronize()  # as `loss.item()` does
            loss.backward()
            training.optimizer.step()
            torch.cuda.current_stream().synchronize()

    run = profiled(loop)
    assert run.median_ms("compute") == pytest.approx(20, abs=SMALL_MS)
    assert run.median_ms("other") < SMALL_MS


@pytest.mark.parametrize("ahead", [False, True])
def test_copies(ahead: bool, profiled: Any) -> None:
    """On the stream that computes; or on another one, for which that waits."""
    x = torch.ones(2**18, 4).pin_memory()

    def loop() -> None:
        training, side = Training(busy_ms=80), torch.cuda.Stream()
        for _ in range(STEPS):
            if ahead:
                torch.cuda.synchronize()
                with torch.cuda.stream(side):
                    copy = x.to("cuda", non_blocking=True)
                torch.cuda.current_stream().wait_stream(side)
            else:
                copy = x.to("cuda", non_blocking=True)
            training.step(copy)

    copy_ms = x.nbytes / 20e9 * 1e3
    assert profiled(loop).median_ms("h2d") == pytest.approx(copy_ms + KERNEL_NS / MS, abs=0.05)


def test_nobody_waits_for_the_device(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training = Training(busy_ms=20)
        for _ in range(STEPS):
            training.step()
        torch.cuda.synchronize()
        machine.clock.sleep(0.5)

    run = profiled(loop)
    assert len(run.rows) == STEPS
    assert 0 not in {stream for thread, stream in machine.synchronized if thread == "ddlprof"}


def test_a_device_that_is_not_the_current_one(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training = Training("cuda:1")
        for _ in range(STEPS):
            training.step()
            machine.clock.sleep(0.03)

    run = profiled(loop)
    assert run.median_ms("compute") == pytest.approx(10, abs=SMALL_MS)
    assert machine.contexts == {1}


def test_replays_of_graphs_are_steps(machine: Machine, profiled: Any) -> None:
    if not hasattr(torch.accelerator, "Graph"):
        pytest.skip("needs torch 2.13")

    def loop() -> None:
        graph = torch.accelerator.Graph()
        replays(graph, graph, machine)

    run = profiled(loop)
    assert len(run.rows) == 4 + STEPS
    assert run.median_ms("compute", after=6) == pytest.approx(10, abs=SMALL_MS)
