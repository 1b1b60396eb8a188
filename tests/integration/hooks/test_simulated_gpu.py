"""Whole sessions on simulated GPUs: the device's clock, copies, streams and graphs, with the simulation as truth."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.collect.accelerator.cuda import CudaDriver
from ddlprof.collect.session import Session
from ddlprof.model.options import Options
from ddlprof.model.records import Flag
from scripts.lab import simulated_cuda
from scripts.lab.simulated_cuda import Machine
from scripts.lab.simulated_cuda.tensors import KERNEL_NS
from tests.integration.hooks.simulated_runs import MS, SMALL_MS, STEPS, Run, Training, timed_steps


def test_steps_are_those_of_the_device(profiled: Any) -> None:
    loop, device_ns = timed_steps()
    run = profiled(loop)
    assert run.header.clock == "device"
    assert len(run.rows) == STEPS
    assert sum(row.step_ns for row in run.rows[4:]) == pytest.approx(device_ns(), abs=20)
    assert run.median_ms("compute") == pytest.approx(10, abs=SMALL_MS)
    assert run.notes == {}


def test_evaluations_and_checkpoints_are_on_the_devices_timeline(profiled: Any) -> None:
    """The host is through with the evaluation at once; the device computes for 200 ms, which saving waits for."""

    def evaluate(training: Training) -> None:
        training.model.eval()
        with torch.no_grad():
            for _ in range(5):
                training.model(training.x)
        training.model.train()

    def loop() -> None:
        training = Training(busy_ms=40)
        for step in range(STEPS):
            training.step()
            if step == 5:
                evaluate(training)
        evaluate(training)
        torch.cuda.synchronize()
        torch.save(torch.ones(4), io.BytesIO())

    run = profiled(loop)
    inside, after = (span for span in run.spans if span.what == "evaluation")
    (saved,) = (span for span in run.spans if span.what == "checkpoint")
    assert min(inside.duration_ns, after.duration_ns) >= 200 * MS
    assert run.rows[6].start_ns <= inside.start_ns
    assert inside.start_ns + inside.duration_ns <= run.rows[6].start_ns + run.rows[6].step_ns
    assert [bool(row.flags & Flag.EVALUATION) for row in run.rows] == [step == 6 for step in range(STEPS)]
    assert run.rows[-1].start_ns + run.rows[-1].step_ns <= after.start_ns
    assert saved.start_ns >= after.start_ns + after.duration_ns
    assert run.notes == {}


def test_parts_of_computing_are_on_the_devices_timeline(profiled: Any) -> None:
    def loop() -> None:
        training = Training(busy_ms=10)
        for _ in range(STEPS):
            training.optimizer.zero_grad()
            loss = training.model(training.x).sum()
            torch.cuda._sleep(20 * MS)
            loss.backward()
            torch.cuda._sleep(40 * MS)
            training.optimizer.step()

    run = profiled(loop)
    assert run.median_ms("compute_forward") == pytest.approx(30, abs=SMALL_MS)
    assert run.median_ms("compute_optimizer") == pytest.approx(40, abs=SMALL_MS)
    for row in run.rows:
        parts = (row.compute_forward_ns, row.compute_backward_ns, row.compute_optimizer_ns)
        assert sum(part or 0 for part in parts) == row.compute_ns


def test_the_peak_of_memory_is_the_allocators(machine: Machine, profiled: Any) -> None:
    """As the helper thread finds it, which may be some steps behind."""
    peaks = []

    def loop() -> None:
        training = Training(busy_ms=1)
        for step in range(4 * STEPS):
            if step == 2 * STEPS:
                peaks.append(torch.cuda.max_memory_allocated())
                torch.ones(2**20, device="cuda")
            training.step()
            machine.clock.sleep(0.2)
        peaks.append(torch.cuda.max_memory_allocated())

    run = profiled(loop)
    assert peaks[-1] >= 2**22 > peaks[0] > 0
    assert [run.rows[STEPS].peak_memory_bytes, run.rows[-1].peak_memory_bytes] == peaks


def test_a_device_that_is_not_the_current_one(machine: Machine, profiled: Any) -> None:
    """Its time is measured, and no context is made on the current one, in any thread."""

    def loop() -> None:
        training = Training("cuda:1")
        for _ in range(STEPS):
            training.step()
            machine.clock.sleep(0.03)  # for the helper thread

    run = profiled(loop)
    assert run.median_ms("compute") == pytest.approx(10, abs=SMALL_MS)
    assert machine.contexts == {1}


def test_a_model_on_two_devices(profiled: Any) -> None:
    """The timeline is that of one of them, which is said."""

    def loop() -> None:
        first, second = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 4).to("cuda:1")

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleList([first, second])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = second(first(x).to("cuda:1"))
                return result

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        for _ in range(STEPS):
            net(torch.ones(2, 4, device="cuda:0")).sum().backward()
            optimizer.step()

    run = profiled(loop)
    assert "the model is on cuda:1, too: copies between them" in run.notes["device"]


def test_a_warm_up_on_a_side_stream_comes_first(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training, side = Training(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                training.step()
        torch.cuda.current_stream().wait_stream(side)
        for _ in range(STEPS):
            training.step()

    run = profiled(loop)
    assert run.median_ms("compute", after=7) == pytest.approx(10, abs=SMALL_MS)
    assert "another stream" in run.notes["device"]


def test_a_move_to_a_stream_that_is_ahead_ends_no_recording(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training, side = Training(), torch.cuda.Stream()
        training.step()
        torch.cuda._sleep(5000 * MS)  # which the other stream does not wait for
        with torch.cuda.stream(side):
            for _ in range(STEPS):
                training.step()
                machine.clock.sleep(0.03)
        torch.cuda.synchronize()

    run = profiled(loop)
    assert run.notes.keys() == {"device"}
    assert len(run.rows) == 1 + STEPS


def test_a_first_forward_that_takes_long_is_in_the_first_step(machine: Machine, profiled: Any) -> None:
    moments: list[int] = []

    def loop() -> None:
        training = Training()
        forward = training.model.forward

        def compile_first(x: torch.Tensor) -> torch.Tensor:
            if not moments:
                moments.append(machine.clock.perf_counter_ns())
                machine.clock.sleep(0.5)
            return forward(x)

        training.model.forward = compile_first  # type: ignore[method-assign]
        for _ in range(STEPS):
            training.step()
        torch.cuda.synchronize()
        moments.append(machine.clock.perf_counter_ns())

    run = profiled(loop)
    assert run.rows[0].step_ns > 500 * MS
    measured = run.rows[-1].start_ns + run.rows[-1].step_ns - run.rows[0].start_ns
    assert measured == pytest.approx(moments[1] - moments[0], abs=20)


def test_nobody_waits_for_the_device(machine: Machine, profiled: Any) -> None:
    """Whether a fused optimizer skipped its update is asked aside: not on the training's stream."""

    def loop() -> None:
        training, scaler = Training(busy_ms=20, fused=True), torch.amp.GradScaler("cuda")
        for _ in range(STEPS):
            training.optimizer.zero_grad()
            scaler.scale(training.model(training.x).sum()).backward()
            scaler.step(training.optimizer)
            scaler.update()
        torch.cuda.synchronize()
        machine.clock.sleep(0.5)

    run = profiled(loop)
    assert len(run.rows) == STEPS
    helper = {stream for thread, stream in machine.synchronized if thread == "ddlprof"}
    assert 0 not in helper


def test_copies_on_the_stream_of_the_training(profiled: Any) -> None:
    """Which need not be the default one."""
    x = torch.ones(2**18, 4).pin_memory()

    def loop() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            training = Training(busy_ms=80)  # so that the device is never idle
            for _ in range(STEPS):
                training.step(x.to("cuda", non_blocking=True))

    run = profiled(loop)
    copy_ms = x.nbytes / 20e9 * 1e3
    assert run.median_ms("h2d") == pytest.approx(copy_ms + KERNEL_NS / MS, abs=2e-6)


@pytest.mark.parametrize("name", ["record", "query", "elapsed_time"])
def test_an_event_that_raises_is_our_error_alone(
    name: str, machine: Machine, profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def broken(*_: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    def loop() -> None:
        training = Training()
        for step in range(STEPS):
            training.step()
            done.append(step)
            if step == 3:
                monkeypatch.setattr(CudaDriver if name == "record" else torch.cuda.Event, name, broken)
            machine.clock.sleep(0.05)

    run = profiled(loop)
    assert len(done) == STEPS
    assert any("unspecified" in note for note in run.notes.values())


def test_an_illegal_access_is_the_scripts_own_error(machine: Machine, profiled: Any) -> None:
    def loop() -> None:
        training = Training()
        for _ in range(STEPS):
            training.step()
        machine.error = simulated_cuda.device.ILLEGAL_ACCESS
        training.step()

    with pytest.raises(RuntimeError, match="illegal memory access"):  # and the helper's end waits for no device
        profiled(loop)


@pytest.mark.parametrize(
    ("module", "name", "source"),
    [
        ("transformer_engine.pytorch.module.base", "_ub_communicators", "comm"),
        ("nvidia.dali.plugin.pytorch", "DALIGenericIterator", "data"),
    ],
)
def test_waits_that_libraries_issue_in_c_are_named(
    module: str, name: str, source: str, profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop() -> None:
        training = Training()
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: {"qkv": 1}}))
        for _ in range(STEPS):
            training.step()

    assert profiled(loop).notes.keys() == {source}


def test_pausing_in_between_keeps_the_clock(profiled: Any, tmp_path: Path) -> None:
    session = Session(Options(out=str(tmp_path / "paused"), quiet=True), "simulated", [])
    session.begin()
    training = Training()
    for step in range(STEPS):
        training.step()
        if step == 5:
            session.pause()
            session.resume()
    session.finish("ok", 0)
    run = Run(tmp_path / "paused")
    assert run.header.clock == "device"
    assert len(run.rows) >= STEPS - 1
    assert all(row.step_ns >= 9 * MS for row in run.rows[2:] if not row.flags & Flag.COMPILE)
