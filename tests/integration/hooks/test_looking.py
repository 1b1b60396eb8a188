"""The cost of looking that the card shows, against the same run's hooks timed one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.collect.recorder import Recorder
from ddlprof.model.records import Overhead
from tests.short import first_short

Profiling = Callable[..., AbstractContextManager[Any]]

EPOCH = 16
EPOCHS = 15


class CountedCalls:
    """A clock by which each call of a Python function of ours in this thread takes a microsecond, and nothing else."""

    def __init__(self) -> None:
        self._ns = 0

    def __call__(self) -> int:
        return self._ns

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if event == "call" and "/ddlprof/collect/" in frame.f_code.co_filename:
            self._ns += 1000


@pytest.fixture
def clock() -> Iterator[CountedCalls]:
    clock = CountedCalls()
    sys.setprofile(clock.count)
    yield clock
    sys.setprofile(None)


@pytest.mark.parametrize("workers", first_short([0, 1]))
def test_epochs_of_as_many_steps_as_one_would_sample(
    workers: int, profiling: Profiling, clock: CountedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of the hooks' calls says what all of them do."""
    monkeypatch.setattr(Recorder, "charge", lambda self, work: work())  # what is rare is not sampled
    monkeypatch.setattr("ddlprof.collect.loader.waits._SHORT_NS", 0)  # all waits are metered, on any machine

    def looking_ns(sampled: bool) -> int:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(torch.randn(2 * EPOCH, 64)), 2, num_workers=workers)
        with profiling() as profile:
            recorder = profile.session.recorder
            recorder.bare_hook = None  # it is called where something is timed, and is none of what is
            recorder.loop.gaps = False  # whether a gap is long depends on the machine
            recorder.cost_clock = recorder.fetching.clock = clock
            if not sampled:
                recorder.widest_gap = recorder.fetching.widest_gap = 1
            for _ in range(EPOCHS if not workers else 4):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x).sum().backward()
                    optimizer.step()
                with torch.no_grad():
                    for (x,) in loader:
                        model(x)
        last: Overhead = profile.records("k")[-1]
        assert last.hook_steps == len(profile.rows)
        assert recorder.timed == recorder.calls - 1 or sampled  # the first never is
        return last.hook_ns

    assert looking_ns(sampled=True) == pytest.approx(looking_ns(sampled=False), rel=0.1)
