"""The load of experts from records worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.experts import ExpertLoad, expert_load
from ddlprof.model.experts import RoutedTokens, read_rows, written
from ddlprof.store import RankData, load_run
from tests.golden.runs import header, step, write_rank


def ranks_of(directory: Path, routed: dict[int, list[RoutedTokens]]) -> list[RankData]:
    for rank, records in routed.items():
        write_rank(directory, header(rank, len(routed)), [step(n) for n in range(9)], records=records)
    return load_run(directory).ranks


def there_and_back(step: int, mine: int, sent: int = 100, group: str = "ep", ranks: int = 2) -> RoutedTokens:
    return RoutedTokens(step, group, ranks, written([(mine, sent), (sent, mine)]))


def test_the_uneven_side_is_that_of_the_experts(tmp_path: Path) -> None:
    found = expert_load(ranks_of(tmp_path, {0: [there_and_back(4, 50)], 1: [there_and_back(4, 150)]}))
    assert found == ExpertLoad(imbalance=1.5, fullest=1, fullest_share=1.5, ranks=2, steps=1)


def test_groups_are_compared_within_themselves(tmp_path: Path) -> None:
    routed = {rank: [there_and_back(4, mine, group=f"ep{rank // 2}")] for rank, mine in enumerate((90, 110, 10, 10))}
    found = expert_load(ranks_of(tmp_path, routed))
    assert found is not None
    assert found.ranks == 2
    assert found.imbalance == pytest.approx((1.1 + 1.0) / 2)


@pytest.mark.parametrize(
    "routed",
    [
        {0: [there_and_back(4, 50)], 1: []},  # the other rank has no record
        {0: [there_and_back(4, 50)], 1: [RoutedTokens(4, "ep", 2, "150/100")]},  # of another number
        {0: [RoutedTokens(4, "ep", 2, "nonsense")], 1: [there_and_back(4, 150)]},  # a damaged line
        {0: [], 1: []},
    ],
)
def test_what_cannot_be_compared_tells_nothing(tmp_path: Path, routed: dict[int, list[RoutedTokens]]) -> None:
    assert expert_load(ranks_of(tmp_path, routed)) is None


def test_rows_are_read_as_they_were_written() -> None:
    rows = [(96, 64), (64, 96), (0, 5)]
    assert written(rows) == "96/64,64/96,0/5"
    assert read_rows(written(rows)) == rows
    assert read_rows("") == []
    with pytest.raises(ValueError, match=r"unpack|invalid"):
        read_rows("1/2,3")
