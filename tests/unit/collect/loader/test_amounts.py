"""How much the model gets, in which steps it is noted, and that a job of equal samples is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ddlprof.collect.loader.amounts import BatchAmounts
from ddlprof.collect.loader.tokens import TextBatches
from ddlprof.collect.recorder import Recorder
from ddlprof.model.amounts import BatchAmount

FIRST = 4


class Modules:
    """What `OuterModules` has for them."""

    def __init__(self) -> None:
        self.is_settled = True
        self.count: Callable[[Any], None] | None = None


def trained(steps: int, shape: Any, dtype: torch.dtype = torch.int64) -> tuple[list[BatchAmount], Modules, int]:
    """The records of a training whose model gets tensors of `shape(step)`, two in each step; the calls between steps.

    Forwards are shown as in a run: all of the first steps, and those for which `count` is set.
    """
    recorder, modules, calls = Recorder(), Modules(), 0
    found: list[BatchAmount] = []
    recorder.record = found.append
    amounts = BatchAmounts(recorder, 0)
    for step in range(steps):
        recorder.boundaries = step
        if step == FIRST:
            amounts.begin(TextBatches())
        if step and step >= amounts.due:
            calls += 1
            amounts.at_update(step, modules)
        for _ in range(2):
            inputs = (torch.zeros(shape(step), dtype=dtype), torch.zeros(3))
            if step < FIRST:
                amounts.forward(inputs)
            elif modules.count is not None:
                modules.count(inputs)
    return found, modules, calls


def test_texts_of_different_length_are_noted_now_and_then() -> None:
    found, _, calls = trained(1000, lambda step: (8, 10 + step % 7))
    assert [each.update for each in found[:4]] == [0, 1, 2, 3]
    assert len([each for each in found if each.update < 128]) > 20
    assert all(each.values == 2 * 8 * (10 + each.update % 7) for each in found)
    assert all(each.samples == 16 and each.is_text for each in found)
    assert calls < 2 * 100 + 2
    assert found[-1].update > 900
    again, _, _ = trained(1000, lambda step: (4, 20 + step % 5))
    assert [each.update for each in again] == [each.update for each in found]  # the same steps on all ranks


def test_lengths_that_alternate_are_seen_alike() -> None:
    for period in (2, 4, 8):
        found, _, _ = trained(2000, lambda step, period=period: (8, 10 + step % period))
        mean = sum(each.values for each in found) / sum(each.samples for each in found)
        assert abs(mean - (10 + (period - 1) / 2)) < 0.15 * period


def test_equal_samples_are_not_looked_at_again() -> None:
    found, modules, calls = trained(500, lambda step: (8 if step % 3 else 4, 10))
    assert [each.update for each in found] == [0, 1, 2, 3]
    assert (calls, modules.count) == (0, None)


def test_other_samples_that_differ_in_size_are_no_text() -> None:
    found, _, _ = trained(60, lambda step: (2, 16, 10 + step), torch.float32)
    assert len(found) > 10
    assert not any(each.is_text for each in found)
    assert found[1].values == 2 * 2 * 16 * 11


def test_where_no_forward_is_seen_any_more_it_ends() -> None:
    recorder, modules = Recorder(), Modules()
    recorder.record = lambda record: None
    amounts = BatchAmounts(recorder, 0)
    amounts.forward((torch.zeros(2, 5),))
    amounts.forward((torch.zeros(2, 6),))
    recorder.boundaries = FIRST
    amounts.begin(TextBatches())
    amounts.at_update(amounts.due, modules)
    assert modules.count is not None
    assert not modules.is_settled
    amounts.at_update(amounts.due, modules)
    assert modules.count is None
    assert amounts.due > 10**12


def test_what_has_no_tensor_or_a_nested_one_is_passed_over() -> None:
    amounts = BatchAmounts(Recorder(), 0)
    for inputs in ((), (None, "text"), (torch.tensor(1.0),)):
        amounts.forward(inputs)
    assert amounts._of == {}
