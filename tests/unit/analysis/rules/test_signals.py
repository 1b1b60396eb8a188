"""Signals of rules: memory that grows, devices behind their hosts, uneven work, and waits for data in bursts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ddlprof.analysis.rules.input import _in_bursts
from ddlprof.analysis.rules.signals import (
    UnevenWork,
    find_bursts,
    find_uneven,
    lag_share,
    peak_rises,
    steady_growth,
)
from ddlprof.analysis.run import analyse
from ddlprof.model.amounts import BatchAmount
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank
from tests.unit.analysis.rules.made_up import facts

MIB = 2.0**20
STEP = np.arange(60.0)
RANDOM = np.random.default_rng(7)


def test_a_leak_is_found_with_its_slope() -> None:
    held = 500 * MIB + 2 * MIB * STEP + RANDOM.normal(0, 2 * MIB, 60)
    slope = steady_growth(STEP, held)
    assert slope is not None
    assert slope == pytest.approx(2 * MIB, rel=0.1)


def test_uneven_readings_and_readings_that_are_missing_do_not_matter() -> None:
    step = np.cumsum(RANDOM.integers(1, 30, 60)).astype(float)
    held = 500 * MIB + MIB * step
    held[::7] = np.nan
    assert steady_growth(step, held) == pytest.approx(MIB)


@pytest.mark.parametrize(
    "held",
    [
        np.full(60, 900 * MIB),
        900 * MIB + RANDOM.normal(0, 20 * MIB, 60),
        500 * MIB + 300 * MIB * (1 - np.exp(-STEP / 15)),
        500 * MIB + 60 * MIB * np.log(1 + STEP),
        np.maximum.accumulate(500 * MIB + RANDOM.normal(0, 40 * MIB, 60)),
        500 * MIB + MIB * np.minimum(STEP, 30) * 4,
        500 * MIB + np.where(STEP > 30, 200 * MIB, 0),
        500 * MIB + 40 * MIB * np.sin(STEP / 3),
        900 * MIB - 4 * MIB * STEP,
        500 * MIB + 0.2 * MIB * STEP,
    ],
    ids=["flat", "noise", "plateau", "logarithm", "records", "filled", "a jump", "waves", "shrinking", "little"],
)
def test_other_memory_is_no_leak(held: NDArray[np.float64]) -> None:
    assert steady_growth(STEP, held) is None


def test_few_readings_say_nothing() -> None:
    assert steady_growth(STEP[:11], 500 * MIB + 20 * MIB * STEP[:11]) is None
    assert steady_growth(STEP[:12], 500 * MIB + 20 * MIB * STEP[:12]) is not None
    assert steady_growth(np.zeros(0), np.zeros(0)) is None
    assert steady_growth(np.zeros(20), 500 * MIB + 20 * MIB * np.arange(20.0)) is None


def test_random_walks_are_seldom_called_leaks() -> None:
    called = sum(
        steady_growth(STEP, 4000 * MIB + np.cumsum(RANDOM.normal(0, 10 * MIB, 60))) is not None for _ in range(300)
    )
    assert called <= 3


def rises(folder: Path, *ranks: Sequence[int | None]) -> float | None:
    """Ranks whose memory has had these peaks, in MiB."""
    for rank, peaks in enumerate(ranks):
        rows = [
            replace(step(n), peak_memory_bytes=None if peak is None else peak * 2**20) for n, peak in enumerate(peaks)
        ]
        write_rank(folder, header(rank, len(ranks)), rows)
    return peak_rises(analyse(load_run(folder))[0].ranks)


def test_the_peak_of_memory_rises_where_it_does_so_for_long(tmp_path: Path) -> None:
    rising = [500 + 4 * n for n in range(40)]
    assert rises(tmp_path / "a", [500] * 40, rising) == 4 * MIB
    assert rises(tmp_path / "b", [500] * 40) is None
    assert rises(tmp_path / "c", [None] * 40) is None
    assert rises(tmp_path / "d", [5000 + n for n in range(40)]) is None  # a little of much


def lag_of(folder: Path, *ranks: Sequence[float | None]) -> float | None:
    """Ranks that compute for 8 ms a step, and whose device is so many milliseconds behind."""
    for rank, lags in enumerate(ranks):
        rows = [replace(step(n), device_lag_ns=None if lag is None else round(lag * MS)) for n, lag in enumerate(lags)]
        write_rank(folder, header(rank, len(ranks), device="cuda"), rows)
    return lag_share(analyse(load_run(folder))[0].ranks)


@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        ([[0.4] * 40], 0.05),
        ([[0.4] * 30 + [800.0] * 10], 0.05),  # the median step
        ([[0.4] * 40, [4.0] * 40], 0.5),  # one rank may wait for the other
        ([[0.4] * 40, [None] * 40], None),
        ([[None] * 30 + [0.4] * 9], None),  # of too few steps
        ([[None] * 30 + [0.4] * 10], 0.05),
        ([[0.0] * 40], 0.0),
    ],
)
def test_the_rank_that_is_furthest_behind(tmp_path: Path, ranks: list[list[float | None]], share: float | None) -> None:
    assert lag_of(tmp_path, *ranks) == (None if share is None else pytest.approx(share))


UNEVEN_RANDOM = np.random.default_rng(5)


def uneven(
    directory: Path, samples: Callable[[int], int], compute_ms: Callable[[int, int], float]
) -> UnevenWork | None:
    """Two ranks; `samples(step)` is rank 0's number, rank 1 gets what is left of 64."""
    for rank in (0, 1):
        rows = []
        for number in range(60):
            mine = samples(number) if rank == 0 else 64 - samples(number)
            rows.append(replace(step(number, compute_ms(mine, rank)), samples=mine))
        write_rank(directory, header(rank, 2), rows)
    (attempt,) = analyse(load_run(directory))
    return find_uneven(attempt.ranks)


def test_samples_that_take_their_time(tmp_path: Path) -> None:
    found = uneven(tmp_path, lambda n: 32 + n % 5, lambda samples, rank: samples / 4)
    assert found is not None
    assert 0.99 < found.correlation <= 1.0001
    assert 0.05 < found.samples_spread < 0.15
    assert found.steps == 57


def test_time_that_has_nothing_to_do_with_samples(tmp_path: Path) -> None:
    found = uneven(tmp_path, lambda n: 32 + n % 5, lambda samples, rank: float(UNEVEN_RANDOM.uniform(5, 15)))
    assert found is not None
    assert abs(found.correlation) < 0.4


def test_samples_of_a_rank_that_loads_for_all_are_not_compared(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = [step(n, 10, data_ms=20 + n % 3) if rank == 0 else step(n, 10, data_ms=None) for n in range(60)]
        write_rank(tmp_path, header(rank, 2), [replace(each, samples=64 >> rank) for each in made])
    (attempt,) = analyse(load_run(tmp_path))
    assert find_uneven(attempt.ranks) is None


def test_lengths_that_take_their_time_explain_what_samples_do_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        rows, noted, at_ms = [], [], 0
        for number in range(60):
            length = 20 + (7 * number + 11 * rank) % 13
            rows.append(replace(step(number, length / 2, start_ms=at_ms), samples=8))
            if number % 2 == 0:
                noted.append(BatchAmount((at_ms + 1) * MS, number, 8, 8 * length, True))
            at_ms += 50
        write_rank(tmp_path, header(rank, 2), rows, records=noted)
    (attempt,) = analyse(load_run(tmp_path))
    found = find_uneven(attempt.ranks, attempt.amounts)
    assert found is not None
    assert found.unit == "tokens"
    assert found.correlation > 0.99
    assert found.samples_spread > 0.05
    assert 25 < found.steps < 31
    samples = find_uneven(attempt.ranks)
    assert samples is not None
    assert (samples.unit, samples.samples_spread) == ("samples", 0)


def test_samples_are_named_where_their_length_explains_no_more(tmp_path: Path) -> None:
    """What is noted of the length in a few steps is in proportion to the samples, whose number is known in all."""
    for rank in (0, 1):
        rows, noted, at_ms = [], [], 0
        for number in range(60):
            mine = 32 + (7 * number + 11 * rank) % 13
            is_noted = 10 <= number < 14
            noise_ms = 0.0 if is_noted else 0.1 * ((3 * number + 5 * rank) % 7)
            rows.append(replace(step(number, mine / 2 + noise_ms, start_ms=at_ms), samples=mine))
            if is_noted:
                noted.append(BatchAmount((at_ms + 1) * MS, number, mine, 64 * mine, False))
            at_ms += 50
        write_rank(tmp_path, header(rank, 2), rows, records=noted)
    (attempt,) = analyse(load_run(tmp_path))
    found = find_uneven(attempt.ranks, attempt.amounts)
    assert found is not None
    assert (found.unit, found.steps) == ("samples", 57)


def test_equal_samples_explain_nothing(tmp_path: Path) -> None:
    found = uneven(tmp_path, lambda n: 32, lambda samples, rank: 8.0 + rank)
    assert found == UnevenWork(0.0, 0.0, 57)


def test_it_is_not_known_of_one_rank(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(n) for n in range(20)])
    (attempt,) = analyse(load_run(tmp_path))
    assert find_uneven(attempt.ranks) is None


BURSTS_RANDOM = np.random.default_rng(3)
AHEAD = 4


def test_bursts_are_counted_with_what_they_take() -> None:
    data = np.full(80, MS // 10)
    data[[20, 21, 40, 60, 62]] = 50 * MS
    bursts = find_bursts(data, AHEAD)
    assert bursts is not None
    assert (bursts.number, bursts.longest_s, bursts.steps) == (3, 0.1, 80)
    assert bursts.calm_share == pytest.approx((20 + 18 + 19 + 17) / 80)
    assert bursts.calm_wait_share < 0.05
    assert _in_bursts(facts(bursts=bursts))


@pytest.mark.parametrize(
    "data",
    [
        np.full(80, 20 * MS),
        np.tile([0, 40 * MS], 40),
        np.tile([60 * MS, 0, 0], 27),
        BURSTS_RANDOM.normal(20, 4, 80) * MS,
        BURSTS_RANDOM.exponential(20, 80) * MS,
        BURSTS_RANDOM.lognormal(2, 1, 80) * MS,
        np.where(np.arange(80) < 40, 0, 20) * MS,
    ],
    ids=["even", "two workers", "three workers", "noise", "exponential", "lognormal", "from half time on"],
)
def test_a_loader_that_is_too_slow_waits_otherwise(data: np.ndarray) -> None:
    bursts = find_bursts(np.asarray(data, dtype=np.int64), AHEAD)
    assert bursts is None or not _in_bursts(facts(bursts=bursts))


def test_nothing_waited_for_is_no_burst() -> None:
    assert find_bursts(np.zeros(40, dtype=np.int64), AHEAD) is None
    assert find_bursts(np.zeros(0, dtype=np.int64), AHEAD) is None
