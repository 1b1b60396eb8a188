"""Which steps the headline is about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ddlprof.analysis.steady import find_steady, steps_per_round, warmup_steps
from ddlprof.model.records import Aggregate, Flag
from ddlprof.store import IntArray, StepTable
from tests.golden.runs import step


def table(times_ms: Sequence[float], flags: dict[int, Flag] | None = None, first: int = 0) -> StepTable:
    numbers = range(first, first + len(times_ms))
    rows = [step(n, t, 0, 0, flags=(flags or {}).get(n, 0)) for n, t in zip(numbers, times_ms, strict=True)]
    return StepTable.from_rows(rows)


def steady_steps(*ranks: StepTable, workers: int = 0, capped_from: int | None = None) -> list[int]:
    summed = [] if capped_from is None else [Aggregate(capped_from, 5, 5, 5, 0, None, None, 0, 0, 0, 5, None)]
    window = find_steady(ranks, workers, summed)
    return [int(n) for n in window.steps[window.steady]]


def ns(times_ms: Sequence[float]) -> IntArray:
    return np.array([t * 1e6 for t in times_ms], dtype=np.int64)


@pytest.mark.parametrize(
    ("times_ms", "workers", "expected"),
    [
        ([10] * 40, 0, 3),
        ([90, 50, 40, 30, 20, 10, 10] + [10] * 33, 0, 5),
        ([10, 10, 10, 40] * 10, 4, 8),  # bursts of a loader are no warm-up, but its queues fill first
        ([100] * 30 + [10] * 1000, 0, 20),  # no more than 20
        ([100] * 5 + [10] * 25, 0, 5),
        ([100] * 5 + [10] * 11, 8, 4),  # no more than a quarter
        ([10, 10], 0, 3),
    ],
)
def test_warmup_lasts_until_the_step_time_settles(times_ms: list[float], workers: int, expected: int) -> None:
    assert warmup_steps(ns(times_ms), np.zeros(len(times_ms), dtype=bool), workers) == expected


def test_a_training_seen_from_its_middle_on_has_no_warmup() -> None:
    assert steady_steps(table([10] * 6, first=500)) == list(range(500, 506))


def test_warmup_is_not_prolonged_by_an_unusual_step() -> None:
    times = [10.0] * 40
    times[7] = 500.0
    unusual = np.arange(40) == 7
    assert warmup_steps(ns(times), unusual, 0) == 3


@pytest.mark.parametrize(
    ("workers", "microbatches", "expected"),
    [(0, 1, 1), (1, 1, 1), (4, 1, 4), (4, 2, 2), (4, 3, 4), (6, 4, 3), (500, 1, 1)],
)
def test_a_round_is_one_batch_from_each_worker(workers: int, microbatches: int, expected: int) -> None:
    assert steps_per_round(workers, microbatches) == expected


@pytest.mark.parametrize("flag", [Flag.EPOCH_START, Flag.EVALUATION, Flag.CHECKPOINT, Flag.COMPILE, Flag.TRACED])
def test_unusual_steps_are_left_out(flag: Flag) -> None:
    assert steady_steps(table([10] * 20, {10: flag})) == [*range(3, 10), *range(11, 20)]


def test_a_skipped_update_is_a_step_like_any_other() -> None:
    assert 10 in steady_steps(table([10] * 20, {10: Flag.SKIPPED}))


def test_a_flag_on_most_steps_is_usual() -> None:
    often = dict.fromkeys(range(20), Flag.CHECKPOINT) | {10: Flag.CHECKPOINT | Flag.EVALUATION}
    assert steady_steps(table([10] * 20, often)) == [*range(3, 10), *range(11, 20)]


def test_what_one_rank_does_makes_the_step_unusual_for_all() -> None:
    assert 12 not in steady_steps(table([10] * 20), table([10] * 20, {12: Flag.EVALUATION}))


def test_steps_that_a_killed_rank_lacks_are_left_out() -> None:
    assert max(steady_steps(table([10] * 20), table([10] * 15))) == 14
    # ... unless it hardly began
    assert max(steady_steps(table([10] * 20), table([10] * 5))) == 19


def test_segments_are_whole_loader_rounds() -> None:
    epochs = dict.fromkeys((0, 14, 28), Flag.EPOCH_START)
    found = steady_steps(table([10] * 42, epochs), workers=4)
    segments = np.split(np.array(found), np.flatnonzero(np.diff(found) != 1) + 1)
    assert [len(s) for s in segments] == [4, 12, 12]
    assert [s[0] for s in segments] == [8, 15, 29]


def test_the_mean_over_whole_rounds_is_the_price_of_a_step() -> None:
    times = [1.0, 1.0, 1.0, 41.0] * 12  # delivered in bursts of four: 11 ms a step
    flags = {17: Flag.EVALUATION, 30: Flag.CHECKPOINT}
    ranks = table(times, flags)
    found = steady_steps(ranks, workers=4)
    assert len(found) % 4 == 0
    assert np.mean([times[n] for n in found]) == 11.0


def test_past_the_cap_rounds_are_whole_with_the_sums() -> None:
    rows = [step(n) for n in [*range(20), *range(20, 60, 2)]]
    found = steady_steps(StepTable.from_rows(rows), workers=4, capped_from=21)
    assert found == [*range(8, 20), *range(22, 60, 2)]


@pytest.mark.parametrize(
    ("ranks", "workers", "steady", "note"),
    [
        (table([10] * 8), 8, range(3, 8), "whole loader rounds"),
        (table([10] * 6, dict.fromkeys((3, 4, 5), Flag.EVALUATION)), 0, range(3, 6), "unusual"),
        (table([10] * 3), 0, range(1, 3), "only the first step"),
        (table([10]), 0, range(1), "single step"),
    ],
    ids=["rounds", "flags", "warmup", "single"],
)
def test_too_little_data_is_used_as_it_is_and_said(
    ranks: StepTable, workers: int, steady: Sequence[int], note: str
) -> None:
    window = find_steady([ranks], workers)
    assert window.steps[window.steady].tolist() == list(steady)
    assert len(window.notes) == 1
    assert note in window.notes[0]
    assert not (window.steady & window.warmup).any()


def test_no_steps_have_no_window() -> None:
    window = find_steady([table([])])
    assert not len(window.steps)
    assert not window.notes


def test_masks_look_steps_up_by_number() -> None:
    window = find_steady([table([10] * 12)])
    assert window.is_steady(np.array([2, 3, 11])).tolist() == [False, True, True]
    assert window.is_warmup(np.array([2, 3, 11])).tolist() == [True, False, False]
