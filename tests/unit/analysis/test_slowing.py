"""Steps that become slower all the time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.analysis.slowing import Slowing, find_slowing
from ddlprof.model.records import ContextRow
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank


def slowing_of(
    directory: Path, compute_ms: list[float], other_ms: list[float], queued_ms: Sequence[tuple[float, float]] = ()
) -> list[Slowing]:
    """`queued_ms`: readings of how long the main thread has waited for a processor, each after a moment."""
    rows, start = [], 0.0
    for number, (compute, other) in enumerate(zip(compute_ms, other_ms, strict=True)):
        rows.append(step(number, compute, other_ms=other, start_ms=start))
        start += rows[-1].step_ns / 1e6
    counters = [
        ContextRow(round(at * MS), None, 1, None, None, None, None, process_queued_ns=round(waited * MS))
        for at, waited in queued_ms
    ]
    write_rank(directory, header(), rows, records=counters)
    (attempt,) = analyse(load_run(directory))
    return find_slowing(attempt.ranks)


STEPS = 150


@pytest.mark.parametrize(("compute", "other", "about"), [(0.3, 0.01, "compute"), (0.01, 0.3, "other")])
def test_what_grows_in_every_part_is_told_with_its_class(
    tmp_path: Path, compute: float, other: float, about: str
) -> None:
    noise = random.Random(3)
    (found,) = slowing_of(
        tmp_path,
        [50 + compute * n + noise.uniform(0, 5) for n in range(STEPS)],
        [20 + other * n for n in range(STEPS)],
    )
    assert found.about == about
    assert found.last_s - found.first_s == pytest.approx(0.31 * STEPS * 5 / 6 / 1000, rel=0.15)


@pytest.mark.parametrize(
    "compute_ms",
    [
        [50 + 20 * (n >= 100) for n in range(STEPS)],  # slower once
        [50 + 0.02 * n for n in range(STEPS)],  # hardly slower
        [50 + 0.3 * n for n in range(50)],  # too few to tell
        [80 - 0.2 * n for n in range(STEPS)],
    ],
)
def test_nothing_else_is(tmp_path: Path, compute_ms: list[float]) -> None:
    assert slowing_of(tmp_path, compute_ms, [2.0] * len(compute_ms)) == []


@pytest.mark.parametrize(
    ("compute_ms", "other_ms", "beside"),
    [
        ([20.0] * STEPS, [20 + 1.0 * n for n in range(STEPS)], True),
        ([20.0] * STEPS, [20 + 0.2 * n for n in range(STEPS)], False),  # not twice as long
        ([20 + 1.0 * n for n in range(STEPS)], [20.0] * STEPS, False),  # backward, too: as more samples would
    ],
)
def test_what_grows_beside_the_models_own_work_is_told_from_more_of_it(
    tmp_path: Path, compute_ms: list[float], other_ms: list[float], beside: bool
) -> None:
    (found,) = slowing_of(tmp_path, compute_ms, other_ms)
    assert found.beside is beside


def test_short_steps_that_are_interrupted_more_often_have_not_become_slower(tmp_path: Path) -> None:
    """Their median becomes another one, though a step that nothing interrupts takes as long as before."""
    noise = random.Random(3)
    slices = [4.0 * (noise.random() < 0.3 + 0.4 * n / 600) for n in range(600)]
    slowed = slowing_of(tmp_path, [1.5 + 0.0001 * n for n in range(600)], [0.1 + each for each in slices])
    assert not any(each.beside for each in slowed)


@pytest.mark.parametrize("waits", [False, True])
def test_steps_that_wait_longer_for_a_processor_have_not_become_slower(tmp_path: Path, waits: bool) -> None:
    """Steps of 40 ms that become 120 ms long, with or without readings that this is waiting."""
    other = [20 + 80 * n / STEPS for n in range(STEPS)]
    ends = list(accumulate(20 + each for each in other))
    waited = list(accumulate(80 * n / STEPS for n in range(STEPS)))
    readings = list(zip(ends, waited, strict=True))[::5] if waits else []
    (found,) = slowing_of(tmp_path, [20.0] * STEPS, other, readings)
    assert found.beside is not waits


def test_one_part_may_fall_behind_the_trend(tmp_path: Path) -> None:
    grows = [20 + 1.0 * n for n in range(STEPS)]
    busy = [each + 60 * (100 <= n < 125) for n, each in enumerate(grows)]
    (found,) = slowing_of(tmp_path, [20.0] * STEPS, busy)
    assert found.about == "other"
