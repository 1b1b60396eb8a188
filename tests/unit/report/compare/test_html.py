"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.compare import Gate
from ddlprof.report.compare.data import ComparisonData, build
from ddlprof.report.compare.html import render
from tests.golden.runs import header, manifest, step, write_rank
from tests.unit.report.compare.made import analysed


def compared(folder: Path, data_ms: Sequence[float], gates: Sequence[Gate] = (), steps: int = 100) -> ComparisonData:
    """Two runs whose steps of some 10 ms differ in their waits for data."""
    for letter, ms in zip("ab", data_ms, strict=True):
        write_rank(folder / letter, header(), [step(n, data_ms=ms + n % 3 / 100) for n in range(steps)])
        manifest().write(folder / letter)
    a, b = ([analysed(folder / letter)] for letter in "ab")
    return build(a, b, gates)


def test_what_would_change_the_answer_that_there_is_no_difference(tmp_path: Path) -> None:
    page = render(compared(tmp_path, (1, 1)))
    assert ">no difference</span>" in page
    assert "B would have to be" in page


def test_steps_that_are_too_uneven_need_no_impossible_number(tmp_path: Path) -> None:
    data = compared(tmp_path, (1, 1))
    assert data.step.mean is not None
    assert data.step.a_s is not None
    wide = replace(data.step.mean, low_s=-0.999 * data.step.a_s, high_s=1000 * data.step.a_s)
    rows = [replace(row, mean=wide) if row is data.step else row for row in data.rows]
    page = render(replace(data, rows=rows))
    assert "even ten times as fast could be noise" in page
    assert "B would have to be" not in page


def test_too_few_steps_for_any_answer(tmp_path: Path) -> None:
    page = render(compared(tmp_path, (1, 3), steps=4))
    assert ">too few steps</span>" in page
    assert "there are too few steps to tell" in page


@pytest.mark.parametrize(("share", "badge"), [(0.05, "limit broken"), (0.5, "slower")])
def test_a_broken_limit_comes_first(tmp_path: Path, share: float, badge: str) -> None:
    gate = Gate("step", f"step={share:.0%}", share=share)
    assert f">{badge}</span>" in render(compared(tmp_path, (1, 3), [gate]))
