"""Graphs that are captured on simulated GPUs while a session measures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scripts.lab.simulated_cuda import Machine
from scripts.lab.simulated_cuda.device import Graph
from tests.integration.hooks.simulated_runs import SMALL_MS, STEPS, Training, replays

GRAPHS = ["torch.cuda.CUDAGraph", "torch.accelerator.Graph", "an extension's"]


def graph_of(kind: str) -> Any:
    """Of which ddlprof sees the classes of torch alone."""
    if kind == "torch.cuda.CUDAGraph":
        return torch.cuda.CUDAGraph()
    if kind == "an extension's":
        return Graph()
    of_any_kind = getattr(getattr(torch, "accelerator", None), "Graph", None)
    if of_any_kind is None:
        pytest.skip("needs torch 2.13")
    return of_any_kind()


@pytest.mark.parametrize("kind", GRAPHS[:2])
def test_replays_of_a_captured_step_are_steps(kind: str, machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        graph = graph_of(kind)
        replays(graph, graph if hasattr(graph, "__enter__") else torch.cuda.graph(graph), machine)

    run = profiled(loop)
    assert len(run.rows) == 4 + STEPS
    assert run.median_ms("compute", after=6) == pytest.approx(10, abs=SMALL_MS)
    assert "replays" in run.notes["graphs"]


@pytest.mark.parametrize("kind", GRAPHS)
def test_captures_beside_a_busy_helper_are_unharmed(
    kind: str, machine: Machine, profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddlprof.collect.handover._CAPTURE_WAIT_S", 0.01)
    results = []

    def loop() -> None:
        training = Training(busy_ms=1)
        for _ in range(STEPS):
            training.step()
            graph = graph_of(kind)
            with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
                graph.capture_begin()
                results.append(training.model(training.x))
                machine.clock.sleep(0.06)
                graph.capture_end()
            graph.replay()

    run = profiled(loop)
    assert len(results) == len(run.rows) == STEPS
    assert run.notes == {}


def test_the_session_may_end_while_an_extension_captures(machine: Machine, profiled: Any) -> None:
    """Then the thread that captures asks the device for the last steps."""
    graph = Graph()

    def loop() -> None:
        training = Training()
        for _ in range(STEPS):
            training.step()
        torch.cuda.set_stream(torch.cuda.Stream())
        graph.capture_begin()

    run = profiled(loop)
    graph.capture_end()
    assert len(run.rows) == STEPS


def test_a_driver_that_knows_no_capture_modes_is_not_asked(
    machine: Machine, profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: SimpleNamespace())

    def loop() -> None:
        training = Training()
        for _ in range(STEPS):
            training.step()

    run = profiled(loop)
    assert run.notes["device"].startswith("not measured: RuntimeError: asking it might end captures of graphs")


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
