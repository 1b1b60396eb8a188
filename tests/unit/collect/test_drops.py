"""A reading that fails is counted by kind, with the reason of the first; nothing is passed over in silence."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ddlprof.collect import drops
from ddlprof.collect.drops import DropKind, Drops
from ddlprof.collect.facts.counters import ContextSampler
from ddlprof.collect.facts.model_inspector import ModelInspector
from ddlprof.collect.helper import Helper
from ddlprof.collect.hooks import backward, collectives
from ddlprof.collect.hooks.interception import TorchCount
from ddlprof.collect.hooks.modules import OuterModules
from ddlprof.collect.hooks.optimizers import OptimizerSteps
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.install import Uninstall, fail_open
from ddlprof.collect.loader import dataloader, waits
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.records import Drop
from ddlprof.operators.features import model_facts
from ddlprof.writing.writer import RankWriter
from tests.unit.writing.test_writer import header, lines_of


class Broken(RuntimeError):
    pass


def breaks(*args: Any, **kwargs: Any) -> Any:
    raise Broken("no more")


def counted(recorder: Recorder) -> dict[str, tuple[int, str]]:
    """What was lost, by the words for many of it: how often, and why."""
    return {drop.many: (drop.count, drop.reason) for drop in recorder.drops.take()}


def once(kind: DropKind) -> dict[str, tuple[int, str]]:
    return {kind.many: (1, "Broken: no more")}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


# -- counting ---------------------------------------------------------------------------------------------------------


def test_each_kind_is_counted_with_the_reason_of_the_first() -> None:
    found = Drops()
    found.add(drops.WINDOW, "a graph was being captured")
    found.add(drops.WINDOW, ValueError("of the second"), 2)
    found.add(drops.COLLECTIVE, ValueError("line one\nline two"))
    assert found.take() == [
        Drop("comm", drops.COLLECTIVE.one, drops.COLLECTIVE.many, 1, "ValueError: line one"),
        Drop("windows", drops.WINDOW.one, drops.WINDOW.many, 3, "a graph was being captured"),
    ]
    assert found.take() == []
    found.add(drops.COLLECTIVE, KeyError())
    assert [(drop.count, drop.reason) for drop in found.take()] == [(2, "ValueError: line one")]


def test_an_error_that_cannot_be_printed_is_named() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    found = Drops()
    found.add(drops.COPY_CALL, Silent())
    found.add(drops.MODULE, ValueError("x" * 5000))
    assert next(drop.reason for drop in found.take()) == "Silent"
    found.add(drops.MODULE, "again")
    assert len(found.take()[0].reason) < 300


def test_every_kind_reads_as_a_sentence() -> None:
    kinds = [value for value in vars(drops).values() if isinstance(value, DropKind)]
    assert len(kinds) > 10
    assert len({kind.many for kind in kinds}) == len({kind.one for kind in kinds}) == len(kinds)


# -- the helper thread writes them ------------------------------------------------------------------------------------


def helper_of(recorder: Recorder, directory: Path, context: Any = None) -> Helper:
    writer = RankWriter(header())
    writer.open(directory)
    return Helper(recorder, StepAssembler(0), writer, context, lambda step: None)


def test_they_are_written_as_they_grow_and_at_the_end(recorder: Recorder, tmp_path: Path) -> None:
    helper = helper_of(recorder, tmp_path)
    recorder.drops.add(drops.COLLECTIVE, Broken("no more"))
    helper._slow_records()
    helper._slow_records()
    recorder.drops.add(drops.COLLECTIVE, Broken("of the second"))
    helper.stop()
    helper.writer.close()
    found = [record for tag, record in lines_of(tmp_path) if tag == "u"]
    assert [(drop.count, drop.reason) for drop in found] == [(1, "Broken: no more"), (2, "Broken: no more")]


def test_they_are_written_where_the_helper_itself_has_failed(recorder: Recorder, tmp_path: Path) -> None:
    helper = helper_of(recorder, tmp_path)
    helper._fail(Broken("helper"))
    recorder.drops.add(drops.WINDOW, Broken("no more"))
    helper.stop()
    helper.writer.close()
    assert [record.count for tag, record in lines_of(tmp_path) if tag == "u"] == [1]


def test_a_stack_that_cannot_be_sampled_ends_nothing(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = helper_of(recorder, tmp_path)
    monkeypatch.setattr(helper.stacks, "sample", breaks)
    helper._sample_stack()
    assert recorder.active
    assert counted(recorder) == once(drops.STACK)


def test_collectives_without_a_record_in_the_flight_recorder(recorder: Recorder, tmp_path: Path) -> None:
    helper = helper_of(recorder, tmp_path)
    timed, untimed = SimpleNamespace(duration=5, end=None), SimpleNamespace(duration=None, end=None)
    step: Any = SimpleNamespace(collectives=[timed, untimed, untimed])
    helper._count_untimed(step)
    assert counted(recorder) == {}
    helper.flight_recorder = SimpleNamespace()  # type: ignore[assignment]
    helper._count_untimed(step)
    assert counted(recorder)[drops.DURATION.many][0] == 2


def test_a_counter_that_fails_is_counted_once_as_it_is_not_asked_again(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = ContextSampler(0, time.perf_counter_ns)
    helper_of(recorder, tmp_path, sampler)
    sampler._readers["process_rss_bytes"] = breaks
    sampler.sample()
    sampler.sample()
    assert counted(recorder)[drops.COUNTER.many] == (1, "process_rss_bytes: Broken: no more")


# -- facts ------------------------------------------------------------------------------------------------------------


def test_facts_of_a_model_that_cannot_be_read(recorder: Recorder) -> None:
    class Model(torch.nn.Linear):
        modules = breaks

    probe = ModelInspector(recorder)
    facts = model_facts(Model(1, 1), failed=probe.failed)
    assert facts.parameters is None
    model_facts(Model(1, 1), failed=probe.failed)
    ((count, reason),) = counted(recorder).values()
    assert count == 2
    assert reason == "parameters: Broken: no more"


def test_a_backward_whose_operations_cannot_be_counted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = ModelInspector(recorder)
    recorder.boundaries = 1
    monkeypatch.setattr(probe.flops, "count", breaks)
    probe.backward_begin([torch.ones(1)], False, False)
    assert counted(recorder) == {drops.FACT.many: (1, "operations: Broken: no more")}


# -- hooks in the training thread -------------------------------------------------------------------------------------


def test_a_hook_that_fails_is_counted_by_its_name(recorder: Recorder) -> None:
    fail_open(breaks, recorder)(1)
    steps = OptimizerSteps(torch, recorder, lambda optimizer: None)
    steps.watch = SimpleNamespace(look=breaks)  # type: ignore[assignment]
    parameters = [torch.ones(1, requires_grad=True)]
    optimizer = torch.optim.SGD(parameters)
    steps.begin(optimizer, sys._getframe())
    steps.end(optimizer)
    assert counted(recorder) == {drops.HOOK.many: (2, "breaks: Broken: no more")}


def test_a_look_before_backward_that_fails(recorder: Recorder) -> None:
    inspection: Any = SimpleNamespace(forward=breaks, forward_over=breaks, backward=breaks, update=breaks)
    uninstall = backward.install(hook_context(torch, recorder, inspection=inspection))
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    finally:
        uninstall()
    ((count, reason),) = counted(recorder).values()
    assert count == 1
    assert reason.endswith("look: Broken: no more")


def test_a_module_that_cannot_be_marked(recorder: Recorder) -> None:
    outer = OuterModules(torch, recorder, lambda module, inputs: None)
    outer.adopt(SimpleNamespace())
    assert counted(recorder)[drops.MODULE.many][0] == 1


def loader_of(recorder: Recorder) -> tuple[Any, Uninstall]:
    loaders = dataloader.Loaders(waits.Waits(recorder), lambda loader: None, lambda batch: None)
    loaders.waits.begin(torch)
    return loaders, dataloader.install(loaders)


def test_a_batch_whose_samples_cannot_be_counted_or_whose_wait_cannot_be_split(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders, uninstall = loader_of(recorder)
    monkeypatch.setattr(dataloader, "batch_size", breaks)
    monkeypatch.setattr(loaders.waits, "meter", breaks)
    try:
        assert len(list(DataLoader([1, 2, 3], collate_fn=str))) == 3  # type: ignore[arg-type]
    finally:
        uninstall()
    assert counted(recorder) == {
        drops.SAMPLES.many: (3, "Broken: no more"),
        drops.SPLIT.many: (4, "Broken: no more"),  # the last one ends the epoch
    }


def test_the_same_for_a_function_that_makes_batches(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = waits.Waits(recorder)
    monkeypatch.setattr(shared, "meter", breaks)
    source = waits.BatchSource(shared, breaks)
    assert source.wait(0, lambda: "batch") == "batch"
    assert counted(recorder) == {**once(drops.SAMPLES), **once(drops.SPLIT)}


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def _sum_at_a_method(value: torch.Tensor) -> None:
    work = dist.all_reduce(value, async_op=True)
    assert work is not None
    work.wait()


def _sum_at_the_dispatcher(value: torch.Tensor) -> None:
    dist.reduce(value, 0)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("issue", "function", "kind"),
    [
        (_sum_at_the_dispatcher, "group_of", drops.COLLECTIVE),
        (_sum_at_the_dispatcher, "unbox_work", drops.COLLECTIVE_END),
        (_sum_at_a_method, "note", drops.COLLECTIVE),
        (_sum_at_a_method, "in_flight.add", drops.COLLECTIVE_END),
    ],
)
def test_a_collective_that_cannot_be_read(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    issue: Callable[[torch.Tensor], None],
    function: str,
    kind: DropKind,
) -> None:
    made: list[Any] = []
    original = collectives._Collectives.__init__

    def keep(self: Any, *args: Any) -> None:
        original(self, *args)
        owner, _, name = function.rpartition(".")
        monkeypatch.setattr(getattr(self, owner) if owner else self, name, breaks)
        made.append(self)

    monkeypatch.setattr(collectives._Collectives, "__init__", keep)
    uninstall = collectives.install(hook_context(torch, recorder))
    value = torch.ones(3)
    try:
        issue(value)
        issue(value)
    finally:
        uninstall()
    assert made
    assert value.tolist() == [1.0, 1.0, 1.0]
    assert counted(recorder) == {kind.many: (2, "Broken: no more")}


@pytest.mark.usefixtures("group")
def test_torchs_count_that_cannot_be_read(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchCount, "unseen", breaks)
    uninstall = collectives.install(hook_context(torch, recorder))
    uninstall()
    assert counted(recorder) == once(drops.COUNT)


def test_ordinary_work_loses_nothing(recorder: Recorder) -> None:
    recorder.thread = threading.get_ident()
    _, uninstall = loader_of(recorder)
    undo = backward.install(hook_context(torch, recorder))
    try:
        for batch in DataLoader([1.0, 2.0]):  # type: ignore[arg-type]
            (batch * torch.ones(1, requires_grad=True)).sum().backward()
    finally:
        undo()
        uninstall()
    assert counted(recorder) == {}
