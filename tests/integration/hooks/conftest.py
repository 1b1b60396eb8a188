"""Real training in this process under a real session, and the certainty that nothing of it is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.eval_frame
import torch.distributed
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, dataloader

from ddlprof.collect.session import Session
from ddlprof.collect.writer import rank_files
from ddlprof.model import codec
from ddlprof.model.options import Options
from ddlprof.model.records import StepRow
from scripts.lab.virtual_clock import installed
from tests.integration.hooks.virtual_operators import Clock, Log

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

    def begin(self, clock: Clock | None) -> None:
        self.session.begin()
        if clock is not None:
            loop = self.session.recorder.loop
            loop.log = Log(clock, loop.log)
            clock.await_thread()

    def records(self, tag: str) -> list[Any]:
        return [record for kind, record in self.lines if kind == tag]

    @property
    def rows(self) -> list[StepRow]:
        return self.records("s")

    def finish(self) -> None:
        self.session.finish("ok", 0)
        text, _ = rank_files(self.directory, 0, 0)
        self.lines = [codec.decode(line) for line in text.read_text().splitlines()[1:]]


Profiling = Callable[..., AbstractContextManager[Profile]]


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clock of the recorder and of the test's loop: torch's operators take no time, unless the test says so."""
    clock = Clock()
    with installed(clock):
        yield clock


@pytest.fixture
def profiling(tmp_path: Path, request: pytest.FixtureRequest) -> Profiling:
    """`with profiling() as profile:` trains; `profile.rows` afterwards. No hook may have failed.

    The clock is the host's, if the test does not ask for `clock`, too. `may_note`: something of the job cannot be measured in the usual way, which the run says.
    """
    count = 0
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None

    @contextmanager
    def run(may_note: bool = False, **options: Any) -> Iterator[Profile]:
        nonlocal count
        count += 1
        profile = Profile(tmp_path / f"run-{count}", **options)
        profile.begin(clock)
        try:
            yield profile
        finally:
            profile.finish()
        assert may_note or profile.records("n") == []
        assert profile.records("u") == []
        for row in profile.rows:
            assert (
                sum((row.compute_ns, row.data_ns or 0, row.h2d_ns or 0, row.comm_ns or 0, row.other_ns)) == row.step_ns
            )

    return run
