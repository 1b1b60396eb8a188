"""How long a training waited for processors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.model.records import ContextRow
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank


def read(folder: Path, *ranks: Sequence[tuple[int, int | None]]) -> float | None:
    """Ranks of 400 ms whose counter stands so at these milliseconds."""
    for rank, rows in enumerate(ranks):
        counters = [
            ContextRow(
                at * MS, None, 1, None, None, None, None, process_queued_ns=None if queued is None else queued * MS
            )
            for at, queued in rows
        ]
        write_rank(folder, header(rank, len(ranks)), [step(n) for n in range(40)], records=counters)
    return analyse(load_run(folder))[0].queued_share


def test_the_rank_that_waited_most_while_it_trained(tmp_path: Path) -> None:
    waited = [(-5000 + 5001, 0), (100, 10), (300, 30), (900, 500)]  # the last one is after the training
    assert read(tmp_path, waited, [(100, 7), (200, 8), (300, 57)]) == pytest.approx(0.25)


@pytest.mark.parametrize("rows", [[], [(100, 5)], [(100, None), (200, None)], [(100, 5), (900, 80)]])
def test_without_two_readings_it_is_not_known(tmp_path: Path, rows: list[tuple[int, int | None]]) -> None:
    assert read(tmp_path, rows) is None
