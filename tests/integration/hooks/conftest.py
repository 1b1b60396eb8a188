"""Real training in this process under a real session, and the certainty that nothing of it is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.eval_frame
import torch.distributed
from torch import Tensor
from torch.nn import functional
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, dataloader

from ddlprof.collect.session import Session
from ddlprof.collect.steps.loop import OperatorLog
from ddlprof.model.options import Options
from ddlprof.model.records import StepRow
from ddlprof.writing.writer import rank_files
from scripts.lab import simulated_cuda
from scripts.lab.simulated_cuda import Machine
from scripts.lab.virtual_clock import VirtualClock, installed
from tests.integration.hooks.simulated_runs import Run
from tests.records import records_in

PATCHED: list[tuple[Any, str]] = [
    (DataLoader, "__iter__"),
    (dataloader._BaseDataLoaderIter, "__next__"),
    (dataloader._MultiProcessingDataLoaderIter, "__init__"),
    (dataloader._MultiProcessingDataLoaderIter, "_reset"),
    (torch.nn.Module, "__call__"),
    (torch.nn.Module, "eval"),
    (torch.nn.Module, "_replicate_for_data_parallel"),
    (torch.autograd, "backward"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "step"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.nn.Module, "zero_grad"),
    (torch._dynamo.eval_frame.OptimizeContext, "__init__"),
    (torch, "save"),
    (torch.serialization, "save"),
    (torch.distributed.distributed_c10d, "_update_default_pg"),
    (torch.distributed, "_broadcast_coalesced"),
    (torch.distributed, "_verify_params_across_processes"),
    (torch._C._distributed_c10d.Reducer, "__init__"),
    (torch._C._distributed_c10d.ProcessGroup, "allreduce"),
    (torch._C._distributed_c10d.ProcessGroup, "_allgather_base"),
    (torch._C._distributed_c10d.Work, "wait"),
]
ORIGINAL = [vars(owner)[name] for owner, name in PATCHED]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After each test torch is as it was."""
    yield
    for (owner, name), original in zip(PATCHED, ORIGINAL, strict=True):
        assert vars(owner)[name] is original, f"{owner.__name__}.{name} is still ours"
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks
    assert "to" not in vars(torch.Tensor)


class Profile:
    """A session in this process; `rows` are there after the end."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.session = Session(Options(out=str(directory), quiet=True, **options), "test", [])
        self.lines: list[tuple[str, Any]] = []

    def records(self, tag: str) -> list[Any]:
        return [record for kind, record in self.lines if kind == tag]

    @property
    def rows(self) -> list[StepRow]:
        return self.records("s")

    def finish(self) -> None:
        self.session.finish("ok", 0)
        text, _ = rank_files(self.directory, 0, 0)
        self.lines = records_in(text)


Profiling = Callable[..., AbstractContextManager[Profile]]


@pytest.fixture
def profiling(tmp_path: Path) -> Profiling:
    """`with profiling() as profile:` trains; `profile.rows` afterwards. No hook may have failed.

    `may_note`: something of the job cannot be measured in the usual way, which the run says.
    """
    count = 0

    @contextmanager
    def run(may_note: bool = False, **options: Any) -> Iterator[Profile]:
        nonlocal count
        count += 1
        profile = Profile(tmp_path / f"run-{count}", **options)
        profile.session.begin()
        try:
            yield profile
        finally:
            profile.finish()
        assert may_note or profile.records("n") == []
        assert profile.records("u") == []
        for row in profile.rows:
            assert (
                sum((row.compute_ns or 0, row.data_ns or 0, row.h2d_ns or 0, row.comm_ns or 0, row.other_ns))
                == row.step_ns
            )

    return run


# -- time ---------------------------------------------------------------------------------------------------------

FORWARD_NS, BACKWARD_NS = 1_000_000, 2_000_000
"""Of a linear layer on a virtual clock."""


def on(clock: VirtualClock) -> Any:
    """What stands in for the module `time`."""
    return SimpleNamespace(
        sleep=clock.sleep,
        perf_counter=clock.perf_counter,
        perf_counter_ns=clock.perf_counter_ns,
        time_ns=clock.time_ns,
    )


@pytest.fixture
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """The time of this process is virtual; the test's module passes it by `time.sleep`, and by `burn` if it has one.

    Torch's operators take none of it. Other processes, such as a loader's workers, see it stand still.
    """
    with installed() as clock:
        monkeypatch.setattr(request.module, "time", on(clock), raising=False)
        monkeypatch.setattr(request.module, "burn", lambda seconds: clock.work(round(seconds * 1e9)), raising=False)
        yield clock


class Layers(OperatorLog):
    """Linear layers take time on a clock, as the only operators; and what torch's profiler would tell of them."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._since = 0
        self._linear = functional.linear
        self._done: list[tuple[int, int]] = []

    def start(self) -> bool:
        self._since, self._done = self._clock.perf_counter_ns(), []
        return True

    def stop(self, recorded: bool = False) -> Any:
        return list(self._done)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self._linear(x, weight, bias)
        if len(x) == 1:  # acting on one state, which is nothing beside a batch
            return y
        self._compute(FORWARD_NS)
        if y.requires_grad:
            y.register_hook(lambda gradient: self._compute(BACKWARD_NS))
        return y

    def _compute(self, ns: int) -> None:
        begin = self._clock.perf_counter_ns() - self._since
        self._clock.work(ns)
        self._done.append((begin, begin + ns))


@pytest.fixture
def layers(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Layers:
    """Linear layers take time."""
    layers = Layers(clock)
    monkeypatch.setattr(functional, "linear", layers.linear)
    monkeypatch.setattr("ddlprof.collect.hooks.operators.LegacyProfiler", lambda torch: layers)
    return layers


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated_cuda.simulated() as machine:
        yield machine


@pytest.fixture
def profiled(machine: Machine, tmp_path: Path) -> Callable[..., Run]:
    """Runs a loop under a session of its own."""

    def run(loop: Callable[[], None], **options: Any) -> Run:
        session = Session(Options(out=str(tmp_path / "run"), quiet=True, **options), "simulated", [])
        session.begin()
        try:
            loop()
        finally:
            session.finish("ok", 0)
        return Run(tmp_path / "run")

    return run
