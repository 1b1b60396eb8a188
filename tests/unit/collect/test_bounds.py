"""What a session holds does not grow with the training: not with its optimizers, loaders, tags or sessions."""

from __future__ import annotations

import gc
import os
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddlprof
from ddlprof.collect import current
from ddlprof.collect.hooks.collective import _MOST_TAGS, Endpoints
from ddlprof.collect.seen_groups import SeenGroups
from ddlprof.collect.steps import boundaries
from ddlprof.collect.steps.boundaries import StepBoundaries
from ddlprof.collect.steps.sums import Roles
from ddlprof.model.events import Kind
from tests.unit.collect.conftest import LARGE, Thread
from tests.unit.collect.cores import CORES, Core

MOST = 20


class Name(str):
    """The name of a class of optimizers; counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("settled", [True, False])
def test_a_new_optimizer_costs_the_same_however_many_there_were(settled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = Counter[str]()
    counts = StepBoundaries._counts
    monkeypatch.setattr(StepBoundaries, "_counts", lambda *args: looked_at.update(["_counts"]) or counts(*args))
    thread, costs = Thread(), []
    if settled:
        for _ in range(boundaries.SETTLED_AFTER):
            thread.update(1)
    for optimizer in range(1, 400):
        Name.compared = looked_at["_counts"] = 0
        thread.update(1, optimizer, name=Name("SGD"))
        costs.append(Name.compared + looked_at["_counts"])
    assert thread.assembler.boundaries.settled == settled
    assert max(costs[200:]) <= max(costs[:10])


def test_optimizers_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "_MOST_KNOWN", MOST)
    thread = Thread()
    for _ in range(boundaries.SETTLED_AFTER):
        thread.update(1, 0, size=10 * LARGE)
    for optimizer in range(1, 10 * MOST):
        thread.update(1, optimizer)
        thread.update(1, 0)  # the anchor, which is never forgotten
    known = thread.assembler.boundaries
    assert len(known.names) == len(known.sizes) == len(known._numbers) == MOST
    assert len(known._ends) <= MOST
    assert known.anchor == 0
    assert known.label(10 * MOST - 1) == f"SGD#{10 * MOST}"
    assert len(thread.rows) == boundaries.SETTLED_AFTER + 10 * MOST - 1


def test_a_note_names_a_few_of_many_optimizers() -> None:
    thread = Thread(step_optimizer="Adam")
    for optimizer in range(100):
        thread.update(1, optimizer)
    assert thread.rows == []
    note = thread.assembler.boundaries.note()
    assert note is not None
    assert note.endswith(", SGD#20 (parameters: 1,000) and 80 more")


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_the_loop_keeps_no_optimizer(core: Core) -> None:
    class Number:
        """Stands for that of an optimizer."""

    recorder, gone = core.recorder(), []
    for _ in range(MOST):
        number = Number()
        gone.append(weakref.ref(number))
        recorder.emit(Kind.OPTIMIZER_BEGIN)
        recorder.emit(Kind.OPTIMIZER_END, number)
        recorder.chunks.clear()
    del number
    assert sum(each() is not None for each in gone) <= 2


def test_loaders_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roles, "most", MOST)
    thread = Thread()
    for loader in range(10 * MOST):
        thread.batch(1, loader)
        thread.forward(1)
        thread.backward(1)
        thread.update(1)
    assert len(thread.assembler._roles) <= MOST
    assert len(thread.rows) == 10 * MOST


def test_channels_are_as_many_however_many_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    seen = SeenGroups()
    ends = Endpoints(seen)
    group: Any = SimpleNamespace(name="0", rank=lambda place: place)
    op: Any = SimpleNamespace(name="send", root=0, tag=1, is_message=True)
    channels = [ends._channel(op, (2, tag), "0", 2) for tag in range(5 * _MOST_TAGS)]
    assert len(set(channels)) == _MOST_TAGS
    assert channels[:3] == ["0:1>2", "0:1>2#1", "0:1>2#2"]
    for tag in range(5 * _MOST_TAGS):
        ends.find(op, (2, tag), group)
    assert len(seen.counters) == _MOST_TAGS


def test_a_finished_session_is_freed_and_forks_are_heard_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(current, "_hears_of_forks", False)
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: registered.append(calls))
    sessions = []
    for number in range(4):
        with ddlprof.profile(out=tmp_path / str(number)) as profile:
            sessions.append(weakref.ref(profile._session))
    del profile
    gc.collect()
    assert [session() for session in sessions[1:]] == [None] * 3  # what dynamo imports, it keeps of the first
    assert len(registered) <= 1
