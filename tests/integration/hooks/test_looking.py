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

from ddlprof.collect.loader.dataloader import Loaders
from ddlprof.collect.loader.waits import Metering
from ddlprof.collect.recorder import Recorder
from ddlprof.model.records import LookingCost

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


class Stopwatch:
    """Adds up what calls take, each of them."""

    def __init__(self, clock: CountedCalls) -> None:
        self.ns = 0
        self._clock = clock

    def timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            begin = self._clock()
            try:
                return function(*args, **options)
            finally:
                self.ns += self._clock() - begin

        return timed


@pytest.fixture
def stopwatch(clock: CountedCalls, monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Around what the recorder and the loader's hook do."""
    stopwatch = Stopwatch(clock)
    for owner, name in [
        (Recorder, "emit"), (Loaders, "_before"), (Loaders, "_after"), (Metering, "_metered"), (Metering, "_delivery"),
    ]:  # fmt: skip
        monkeypatch.setattr(owner, name, stopwatch.timing(getattr(owner, name)))
    return stopwatch


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_of_as_many_steps_as_one_would_sample(
    workers: int, profiling: Profiling, clock: CountedCalls, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddlprof.collect.helper.wrapper_cost_ns", lambda: 0)  # is in no call that can be timed
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(2 * EPOCH, 64)), 2, num_workers=workers)
    with profiling() as profile:
        recorder = profile.session.recorder
        recorder.emitting._clock = recorder.fetching._clock = clock
        for _ in range(EPOCHS if not workers else 4):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for (x,) in loader:
                    model(x)
        recorder._charged_ns = 0  # what is rare is not sampled
    last: LookingCost = profile.records("k")[-1]
    assert last.hook_steps == len(profile.rows)
    assert last.hook_ns == pytest.approx(stopwatch.ns, rel=0.1)
