"""Which all-to-alls are noted, and in which steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddlprof.collect.hooks.routing import UNEVEN, Routing
from ddlprof.collect.recorder import Recorder
from ddlprof.model.experts import RoutedTokens

pytest.importorskip("torch.distributed")


def arguments(received: list[int], sent: list[int], rows: int = 6) -> tuple[Any, ...]:
    return torch.zeros(rows, 2), torch.zeros(rows, 2), None, received, sent


@pytest.fixture
def routing() -> Routing:
    made = Routing(Recorder())
    made.know(getattr(torch.ops.c10d, UNEVEN).default)
    return made


def noted(routing: Routing) -> list[RoutedTokens]:
    found: list[RoutedTokens] = []
    routing._recorder.record = found.append
    return found


def test_sizes_of_parts_are_summed_up(routing: Routing) -> None:
    found = noted(routing)
    routing.note(arguments([2, 5], [3, 3]), "ep", 2)
    routing.note(arguments([], []), "ep", 2)  # equal parts
    routing.note(arguments([], [4, 2]), "ep", 2)  # one side is equal
    routing.note(arguments([1, 1], [2, 2]), "other", 2)
    assert found == []
    routing.flush()
    assert found == [RoutedTokens(0, "ep", 2, "7/6,6/6"), RoutedTokens(0, "other", 2, "2/4")]


def test_the_longer_a_training_the_fewer_steps_are_noted(routing: Routing) -> None:
    found = noted(routing)
    for step in range(1000):
        routing._recorder.boundaries = step
        for _ in range(2):
            routing.note(arguments([2, 5], [3, 3]), "ep", 2)
    routing.flush()
    assert [each.step for each in found[:34]] == [*range(32), 33, 35]
    assert all(each.rows == "7/6,7/6" for each in found)
    assert len(found) < 32 * 6
    assert found[-1].step > 900
