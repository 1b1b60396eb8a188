"""KeyboardInterrupt, or what one thread raises in another, arrives between any two instructions of a hook.

What the hook had begun is then left as it is. The steps after the next are measured as if nothing had been.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ddlprof.collect
from ddlprof.collect.accelerator import known
from ddlprof.collect.hooks import backward, checkpoint, collectives, copies
from ddlprof.collect.hooks.optimizers import time_zero_grad
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.install import all_of
from ddlprof.collect.loader import dataloader
from ddlprof.collect.loader.data_calls import DataCalls
from ddlprof.collect.loader.waits import Waits
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.classes import CLASSES
from ddlprof.model.records import StepRow
from scripts.lab import simulated_cuda
from tests.short import first_short
from tests.unit.collect.conftest import MS
from tests.unit.collect.cores import CORES, Core

HOOKS = str(Path(ddlprof.collect.__file__).parent)
WIDTH = 4
WARM_UP = 12
"""Steps until the pattern of the loop is known, and no hook looks closer."""


class InterruptedHereError(BaseException):
    """As KeyboardInterrupt, which is no `Exception`."""


class Interrupting:
    """Traces the frames of hooks, and raises an error before one of their instructions."""

    def __init__(self, at: int) -> None:
        self._left = at

    @property
    def has_raised(self) -> bool:
        return self._left < 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HOOKS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self._left -= 1
            if self._left == -1:
                raise InterruptedHereError
        return self


class Random(Dataset[Tensor]):
    """Calls a module of its own, as some do."""

    def __init__(self) -> None:
        self.encoder = nn.Linear(WIDTH, WIDTH)

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, number: int) -> Tensor:
        with torch.no_grad():
            encoded: Tensor = self.encoder(torch.ones(WIDTH))
        return encoded


class Training:
    """A training with everything that is timed, under hooks; an event passes a millisecond."""

    def __init__(self, core: Core, folder: Path, device: str) -> None:
        self.device = device
        self.recorder = core.recorder(self.passes)
        self.recorder.loop.gaps = False  # they are found by what time really is
        self.now = 0
        self.assembler = StepAssembler(0)
        self.rows: list[StepRow] = []
        context = hook_context(torch, self.recorder, known.at_start(torch) if device == "cuda" else None)
        waits = Waits(self.recorder)
        waits.begin(torch)
        loaders = dataloader.Loaders(waits, lambda loader: None, lambda batch: None)
        self.uninstall = all_of(
            dataloader.install(loaders),
            context.modules.install(),
            context.steps.install(),
            time_zero_grad(torch, self.recorder),
            checkpoint.install(context),
            backward.install(context),
            collectives.install(context),
            copies.install(context),
            copies.time_stream_waits(context),
        )
        self.loader = DataLoader(Random(), batch_size=2)
        self.batches = iter(self.loader)
        self.get_batch: Any = DataCalls(waits).wrap(lambda: next(self.batches), "get_batch")
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)
        self.stream: Any = torch.cuda.Stream() if device == "cuda" else None
        self.path = folder / "checkpoint.pt"

    def passes(self) -> int:
        self.now += MS
        return self.now

    def step(self) -> None:
        iter(self.loader)
        x = torch.cat([next(self.batches), self.get_batch()])
        if self.device == "cuda":
            x = self.copied(x)
        self.optimizer.zero_grad()
        loss = self.model(x).sum()
        loss.backward()
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        self.optimizer.step()
        with torch.no_grad():
            self.model(x)
        torch.save(x, self.path)

    def copied(self, x: Tensor) -> Tensor:
        """Copies it, first on another stream."""
        with torch.cuda.stream(self.stream):
            y = x.to(self.device)
        torch.cuda.current_stream().wait_stream(self.stream)
        return y + x.to(self.device)

    def measured(self) -> dict[str, int]:
        """The classes of a step, made and taken apart now."""
        self.step()
        while self.recorder.chunks:
            chunk = self.recorder.chunks.popleft()
            self.recorder.taken += len(chunk)
            for event in chunk:
                self.rows += [step.row for step in self.assembler.feed(event)]
        assert self.recorder.failure is None
        return {name: getattr(row, f"{name}_ns") // MS for row in self.rows[-1:] for name in CLASSES}


@pytest.fixture
def group() -> Iterator[None]:
    store: Any = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


EVERYWHERE = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("core", first_short(reversed(CORES)), ids=lambda core: core.name)
@pytest.mark.parametrize("device", first_short(["cuda", "cpu"]))
@pytest.mark.parametrize("stride", [71, pytest.param(23, marks=pytest.mark.slow), pytest.param(1, marks=EVERYWHERE)])
def test_steps_are_whole_again_after_an_interruption_anywhere(
    core: Core, stride: int, device: str, tmp_path: Path, group: None
) -> None:
    with simulated_cuda.simulated() if device == "cuda" else nullcontext():
        training = Training(core, tmp_path, device)
        try:
            goes_on_after_interruptions(training, stride)
        finally:
            training.uninstall()


def goes_on_after_interruptions(training: Training, stride: int) -> None:
    usual = [training.measured() for _ in range(WARM_UP)][-1]
    assert usual == training.measured()
    assert all(usual[name] for name in (*(["h2d"] if training.device == "cuda" else []), "data", "compute", "comm"))
    at, wrong = 0, []
    while interrupted(training, at):
        training.measured()
        if (found := training.measured()) != usual:
            wrong.append((at, found))
        at += stride
    assert at > 1000
    assert wrong == []


def interrupted(training: Training, at: int) -> bool:
    """Interrupts a step before the instruction of that number in hooks; False if there are not so many."""
    interrupting, before = Interrupting(at), sys.gettrace()
    with (guard := torch._C.DisableTorchFunction()):
        pass
    sys.settrace(interrupting)
    try:
        with suppress(InterruptedHereError):
            training.step()
    finally:
        sys.settrace(before)
        guard.__exit__(None, None, None)  # a tracer interrupts the end of a `with`, too, where no exception can arrive
    return interrupting.has_raised
