"""What is said of a budget is what a rank writes under it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.model.records import Flag
from ddlprof.writing.retention import Budget
from scripts.bench.jobs import Limits
from scripts.bench.memory import bounded, written, wrongly_kept
from tests.golden.runs import header, step

ROWS = [step(n, flags=int(Flag.CHECKPOINT) if n % 97 == 5 else 0) for n in range(3000)]


def test_the_bounded_run_keeps_its_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded, _ = written(header(), ROWS, tmp_path / "recorded", Budget())
    limits = Limits()
    bounded(recorded, tmp_path, limits)
    assert limits.exit_code() == 0
    table = capsys.readouterr().out
    assert "| no budget | 3000 |" in table


def test_a_step_too_many_or_too_few_is_counted(tmp_path: Path) -> None:
    rank, _ = written(header(), ROWS, tmp_path, Budget(100_000, 20_000))
    assert len(rank.strides) > 1
    assert wrongly_kept(rank, len(ROWS)) == 0
    first = rank.strides[0]
    rank.strides = [replace(first, first_step=first.first_step + 6), *rank.strides[1:]]
    assert wrongly_kept(rank, len(ROWS)) == 3
