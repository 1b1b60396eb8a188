"""How much each rank gets: means over the noted steps, and what follows for rates and predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.amounts import Amounts, amounts_of, values_by_step
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.api import _of_mean_samples, _work
from ddlprof.model.amounts import BatchAmount
from ddlprof.model.operators import StepOperators
from ddlprof.store import RankData, load_run
from tests.golden.runs import MS, header, step, write_rank

BATCH, STEPS, STEP_MS = 8, 60, 100


def run_of(directory: Path, lengths: dict[int, int | None], padding: dict[int, int] | None = None) -> list[RankData]:
    """Ranks whose texts have these lengths, noted in every fourth step; those of None were not looked at."""
    for rank, length in lengths.items():
        rows = [step(number, 90, start_ms=number * STEP_MS) for number in range(STEPS)]
        noted = []
        for number in (0, 1, 2, *range(4, STEPS, 4)) if length is not None else ():
            place = (100, (padding or {})[rank]) if padding and number == 0 else (0, 0)
            long = (length or 0) + (2 if number % 8 else -2) * (number >= 4)
            time_ns = (number * STEP_MS + 20) * MS
            noted.append(BatchAmount(time_ns, number, BATCH, BATCH * long, True, *place))
        write_rank(directory, header(rank, len(lengths)), rows, records=noted)
    return load_run(directory).ranks


def attempt_of(directory: Path) -> Attempt:
    (attempt,) = analyse(load_run(directory))
    return attempt


@pytest.mark.parametrize("lengths", [{0: 32, 1: 128}, {0: 128, 1: 32}])
def test_which_rank_is_rank_0_changes_nothing(lengths: dict[int, int | None], tmp_path: Path) -> None:
    found = amounts_of(run_of(tmp_path, lengths))
    assert found is not None
    assert found.mean_values == pytest.approx(BATCH * 80, rel=0.02)
    assert found.per_sample == pytest.approx(80, rel=0.02)
    assert found.counted_per_sample == lengths[0]
    work, words = _work(attempt_of(tmp_path))
    assert work * (lengths[0] or 0) == pytest.approx(80, rel=0.02)
    assert "times the tokens" in words[0]
    longer = max(lengths, key=lambda rank: lengths[rank] or 0)
    assert found.of_rank(longer) == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("batch", "work", "samples"), [(8, 1.0, 8), (8, 2.5, 3), (8, 0.625, 13), (8, 12.0, None), (16, 16.0, 1)]
)
def test_counted_operators_are_those_of_so_many_mean_samples(batch: int, work: float, samples: int | None) -> None:
    found = _of_mean_samples(StepOperators(batch, "fp32", ()), work)
    assert (found.batch if found is not None else None) == samples


def test_equal_ranks_are_predicted_as_they_were(tmp_path: Path) -> None:
    run_of(tmp_path, {0: 64, 1: 64})
    assert _work(attempt_of(tmp_path)) == (1.0, [])


@pytest.mark.parametrize("lengths", [{0: 32, 1: None}, {0: None, 1: None}])
def test_nothing_is_known_unless_of_every_rank(lengths: dict[int, int | None], tmp_path: Path) -> None:
    assert amounts_of(run_of(tmp_path, lengths)) is None
    assert _work(attempt_of(tmp_path)) == (1.0, [])


def test_padding_is_weighed_by_tokens(tmp_path: Path) -> None:
    found = amounts_of(run_of(tmp_path, {0: 32, 1: 128}, padding={0: 0, 1: 50}))
    assert found is not None
    assert found.padding_share == pytest.approx(0.4, rel=0.02)


def test_each_is_found_in_its_step(tmp_path: Path) -> None:
    rank = run_of(tmp_path, {0: 50, 1: 50})[0]
    rank.amounts.append(BatchAmount((STEPS * STEP_MS + 50) * MS, STEPS, BATCH, 1, True))  # after the last step
    values = values_by_step(rank)
    assert values[1] == BATCH * 50
    assert values[5] == -1
    assert values[8] == BATCH * 48
    assert (values != -1).sum() == len(rank.amounts) - 1


def test_a_rank_alone_gets_no_more_than_others() -> None:
    assert Amounts({0: 8.0}, {0: 80.0}, True).of_rank(0) is None
    assert Amounts({0: 8.0, 1: 8.0}, {0: 80.0, 1: 80.0}, True).of_rank(5) is None
