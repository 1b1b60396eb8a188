"""The line at which batches are made, in this process and in a loader's workers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ddlprof.analysis.data_lines import data_lines
from ddlprof.analysis.run import analyse
from ddlprof.store import load_run
from tests.integration.hooks.conftest import Profiling

BATCH = 2


def read(_: int) -> torch.Tensor:
    time.sleep(0.015)
    return torch.ones(4)


class Slow(Dataset[torch.Tensor]):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return self.steps * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        return read(index)


@pytest.mark.parametrize(("workers", "steps"), [(0, 60), (2, 240)])
def test_the_slow_line_of_a_data_set_is_named(profiling: Profiling, tmp_path: Path, workers: int, steps: int) -> None:
    """With workers for some seconds: their samples are read once a second."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    context = "fork" if workers else None
    with profiling() as profile:
        for batch in DataLoader(Slow(steps), BATCH, num_workers=workers, multiprocessing_context=context):
            net(batch).sum().backward()
            optimizer.step()
    assert len(profile.rows) == steps
    (attempt,) = analyse(load_run(tmp_path))
    found = data_lines(attempt.ranks)
    sleeping, calling = (code.co_firstlineno + 1 for code in (read.__code__, Slow.__getitem__.__code__))
    main = found.main
    assert main is not None
    assert main.place.text == f"tests/integration/hooks/test_data_lines.py:{sleeping} read"
    assert main.share > 0.5
    assert found.outer.shares[0].place.text.startswith(f"tests/integration/hooks/test_data_lines.py:{calling} ")


def test_a_line_that_makes_samples_before_the_first_step_is_named(profiling: Profiling, tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with profiling():
        data = Slow(100)
        for index in range(len(data)):
            data[index]
        for _ in range(5):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    (attempt,) = analyse(load_run(tmp_path))
    samples = attempt.ranks[0].data.samples
    line = read.__code__.co_firstlineno + 1
    (place,) = {place for step, place, _ in samples if place.is_of_start and f":{line} " in place.text}
    assert place.what == "start-up items"
    assert all(step == 0 for step, place, _ in samples if place.is_of_start)
