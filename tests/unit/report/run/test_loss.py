"""What card, JSON and Python say of the losses of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ddlprof
from ddlprof.analysis.loss_curve import Curve
from ddlprof.base.errors import UserError
from ddlprof.model.records import LossValue
from ddlprof.store import load_run
from tests.golden.runs import header, manifest, simple_run, step, write_rank

CURVE = Curve(b0=0.002, b1=0.25, b2=0.5)


def run_with(path: Path, loss: Callable[[int], float | None], updates: int = 1200) -> Path:
    """A run of one rank whose losses are noted every fourth update."""
    noted = [LossValue(update, loss(update)) for update in range(0, updates, 4)]
    write_rank(path, header(), [step(number) for number in range(30)], records=noted)
    manifest().write(path)
    return path


def test_a_predictable_loss_has_a_line(tmp_path: Path) -> None:
    run = ddlprof.load(run_with(tmp_path / "run", CURVE.at))
    line = next(line for line in str(run).splitlines() if line.startswith("Loss"))
    assert "in 1,197 updates; predictable" in line
    assert "will level off at 0.50" in line
    assert "after 1,1" in line  # 0.25 / 0.002 * 9 = 1125
    found = run.loss_curve()
    assert found.is_predictable
    assert found.curve is not None
    assert found.curve.b2 == pytest.approx(0.5, abs=0.02)


def test_large_losses_have_no_exponents(tmp_path: Path) -> None:
    run = ddlprof.load(run_with(tmp_path / "run", lambda update: 1e6 * CURVE.at(update)))
    line = next(line for line in str(run).splitlines() if line.startswith("Loss"))
    assert "e+" not in line
    assert "Loss     4,1" in line


@pytest.mark.parametrize("loss", [lambda update: None, lambda update: -2.0, lambda update: 1e14 - update])
def test_others_have_none_and_their_values_are_believed(tmp_path: Path, loss: Callable[[int], float | None]) -> None:
    run_with(tmp_path / "run", loss)
    data = load_run(tmp_path / "run")
    assert [value.value for value in data.ranks[0].training_loss] == [loss(update) for update in range(0, 1200, 4)]
    assert not data.ranks[0].notes
    assert "Loss" not in str(ddlprof.load(tmp_path / "run"))


def test_a_run_without_losses(tmp_path: Path) -> None:
    run = ddlprof.load(simple_run(tmp_path / "run"))
    assert "Loss" not in str(run)
    with pytest.raises(UserError, match="has no losses"):
        run.loss_curve()
