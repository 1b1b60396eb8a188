"""Work that differs from rank to rank, and samples that explain it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddlprof.analysis.run import analyse
from ddlprof.analysis.uneven import Uneven, find_uneven
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

RANDOM = np.random.default_rng(5)


def uneven(directory: Path, samples: Callable[[int], int], compute_ms: Callable[[int, int], float]) -> Uneven | None:
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
    found = uneven(tmp_path, lambda n: 32 + n % 5, lambda samples, rank: float(RANDOM.uniform(5, 15)))
    assert found is not None
    assert abs(found.correlation) < 0.4


def test_equal_samples_explain_nothing(tmp_path: Path) -> None:
    found = uneven(tmp_path, lambda n: 32, lambda samples, rank: 8.0 + rank)
    assert found == Uneven(0.0, 0.0, 57)


def test_it_is_not_known_of_one_rank(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(n) for n in range(20)])
    (attempt,) = analyse(load_run(tmp_path))
    assert find_uneven(attempt.ranks) is None
