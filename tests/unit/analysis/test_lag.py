"""How far devices are behind their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.lag import lag_share
from ddlprof.analysis.run import analyse
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank


def read(folder: Path, *ranks: Sequence[float | None]) -> float | None:
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
    assert read(tmp_path, *ranks) == (None if share is None else pytest.approx(share))
