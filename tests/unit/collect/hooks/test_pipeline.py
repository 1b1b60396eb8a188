"""What is noted of schedules of torch.distributed.pipelining, made in a group of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.collect.hooks import pipeline
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import Recorder
from ddlprof.model.pipeline import PipelineSchedule, read_order

pipelining = pytest.importorskip("torch.distributed.pipelining")
dist: Any = torch.distributed


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])


@pytest.fixture
def written() -> Iterator[Callable[[], list[PipelineSchedule]]]:
    """Does what was left for the time between two steps; returns the records."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    recorder, records, later = Recorder(), [], []  # type: ignore[var-annotated]
    recorder.record = records.append
    uninstall = pipeline.install(hook_context(torch, recorder, later=later.append))

    def write() -> list[PipelineSchedule]:
        while later:
            later.pop(0)()
        assert not recorder.drops.take()
        return records

    yield write
    uninstall()
    dist.destroy_process_group()


def stage(number: int, of: int) -> Any:
    return pipelining.PipelineStage(Body(), number, of, torch.device("cpu"))


def test_a_schedule_with_one_stage(written: Callable[[], list[PipelineSchedule]]) -> None:
    kept = pipelining.Schedule1F1B(stage(0, 1), n_microbatches=4, loss_fn=nn.functional.mse_loss)
    assert written() == [PipelineSchedule("Schedule1F1B", 1, 4, "0", "0", "", "embed,layers*3")]
    del kept


def test_a_schedule_with_several_stages_tells_its_order(written: Callable[[], list[PipelineSchedule]]) -> None:
    kept = pipelining.ScheduleInterleaved1F1B([stage(0, 2), stage(1, 2)], 2, nn.functional.mse_loss)
    (place,) = written()
    assert (place.schedule, place.stages, place.own) == ("ScheduleInterleaved1F1B", 2, "0,1")
    assert sorted(read_order(place.order)) == sorted(
        (number, kind, batch) for number in (0, 1) for kind in "FB" for batch in (0, 1)
    )
    assert place.parts == "embed,layers*3|embed,layers*3"
    del kept


def test_schedules_that_do_not_train_or_are_gone_are_not_noted(written: Callable[[], list[PipelineSchedule]]) -> None:
    kept = pipelining.ScheduleGPipe(stage(0, 1), 2)
    pipelining.ScheduleGPipe(stage(0, 1), 2, nn.functional.mse_loss)
    assert written() == []
    del kept
