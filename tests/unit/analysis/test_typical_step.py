"""The typical step and its collectives, and bus bandwidths, of the golden run, whose times are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.run import RankAnalysis, analyse
from ddlprof.analysis.traffic import bandwidths, transfers
from ddlprof.analysis.typical_step import typical_step
from ddlprof.model.records import CollectiveTimes
from ddlprof.store import load_run
from tests.golden.runs import SHAPES, ddp_step, header, write_rank

STEPS = 20


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankAnalysis]:
    for rank in (0, 1):
        made = [ddp_step(rank, number) for number in range(STEPS)]
        times: list[CollectiveTimes] = [time for _, times in made for time in times]
        write_rank(tmp_path, header(rank, 2), [row for row, _ in made], SHAPES, times)
    return analyse(load_run(tmp_path))[0].ranks


def test_the_step_nearest_to_the_mean(ranks: list[RankAnalysis]) -> None:
    """Steps last 0.0 to 0.4 ms more in turn: the mean is in the middle."""
    step = typical_step(ranks)
    assert step is not None
    assert step * 7 % 5 == 2
    assert typical_step(ranks, (10, 13)) in (10, 11, 12)
    assert typical_step(ranks, (900, None)) is None
    assert typical_step([]) is None


def test_bus_bandwidth_of_each_size(ranks: list[RankAnalysis]) -> None:
    found = bandwidths(each for rank in ranks for each in transfers(rank.collectives, rank.times.steady))
    steady = sum(int(rank.times.steady.sum()) for rank in ranks)
    assert [(row.op, row.scope, row.ranks, row.bytes, row.collectives) for row in found] == [
        ("allreduce", "intra", 2, 100_000, steady),
        ("allreduce", "intra", 2, 400_000, steady),
    ]
    assert found[1].median_gb_s == pytest.approx(400_000 / 6e-3 / 1e9, rel=0.02)
    assert found[1].low_gb_s <= found[1].median_gb_s <= found[1].high_gb_s
    assert bandwidths([]) == []
