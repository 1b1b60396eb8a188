"""Graphs that are captured on simulated GPUs while a session measures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scripts.lab.simulated_cuda import Machine
from tests.integration.hooks.simulated_runs import SMALL_MS, STEPS, Training


def test_replays_of_a_captured_step_are_steps(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training, side = Training(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(4):
                training.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            training.step()
        for _ in range(STEPS):
            graph.replay()
            machine.clock.sleep(0.03)

    run = profiled(loop)
    assert len(run.rows) == 4 + STEPS
    assert run.median_ms("compute", after=6) == pytest.approx(10, abs=SMALL_MS)
    assert "replays" in run.notes["graphs"]


def test_captures_beside_a_busy_helper_are_unharmed(
    machine: Machine, profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddlprof.collect.helper._CAPTURE_WAIT_S", 0.01)
    results = []

    def loop() -> None:
        training = Training(busy_ms=1)
        for _ in range(STEPS):
            training.step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph), torch.no_grad():
                results.append(training.model(training.x))
                machine.clock.sleep(0.06)
            graph.replay()

    run = profiled(loop)
    assert len(results) == len(run.rows) == STEPS


def test_a_capture_left_by_an_exception(profiled: Any) -> None:
    """The graph is never ended; training goes on, and so does recording."""
    left = []

    def loop() -> None:
        training, side = Training(busy_ms=1), torch.cuda.Stream()
        for _ in range(STEPS):
            training.step()
        graph = torch.cuda.CUDAGraph()
        left.append(graph)
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            training.model(training.x)
        for stream in graph.streams:  # type: ignore[attr-defined]
            stream.graph = None  # the driver has given up on it
        graph.machine.capturing.clear()  # type: ignore[attr-defined]
        for _ in range(STEPS):
            training.step()

    run = profiled(loop)
    assert len(run.rows) == 2 * STEPS
