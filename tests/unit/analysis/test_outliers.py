"""Single slow steps do not decide a verdict, and are named where they move the mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ddlprof.analysis.diagnosis import diagnose
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.model.records import StepRow
from ddlprof.report.run import text as card
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.golden.runs import NOW_UNIX_NS, header, step, write_rank


def attempt_of(directory: Path, rows: list[StepRow]) -> Attempt:
    write_rank(directory, header(), rows)
    (attempt,) = analyse(load_run(directory))
    return attempt


def rows_with(slow: dict[int, float], steps: int = 203) -> list[StepRow]:
    """Steps of 20 ms that wait 4 ms for data; those in `slow` spend so many milliseconds in `other`, too."""
    return [step(n, compute_ms=16, data_ms=4, other_ms=slow.get(n, 0)) for n in range(steps)]


def test_one_slow_step_does_not_make_many_good_ones_undecided(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, rows_with({120: 2500}))
    assert attempt.outliers is not None
    assert (attempt.outliers.steps, attempt.outliers.of_steps, attempt.outliers.name) == ([120], 200, "other")
    whole = attempt.summary.mean_ns("step")
    assert whole is not None
    assert np.isclose(whole, 32.5e6)  # the headline keeps it
    assert diagnose(attempt.summary, 200, None).reason == "noise"
    assert diagnose(attempt.decisive, 200, None).stall == "data"


def test_the_card_names_it(tmp_path: Path) -> None:
    for name, slow in (("one", {120: 223.0}), ("two", {120: 223.0, 121: 223.0})):
        attempt_of(tmp_path / name, rows_with(slow))
    cards = []
    for name in ("one", "two"):
        run = load_run(tmp_path / name)
        cards.append(card.render(build_report(run, analyse(run), NOW_UNIX_NS)))
    assert (
        "Outlier  1 step of 200 took 243 ms, mostly in other (step 120): without it the mean is 20.0 ms, which the "
        "verdict is about\n"
    ) in cards[0]
    assert "Outlier  2 steps of 200 took up to 243 ms, mostly in other (steps 120, 121): without them" in cards[1]
    assert "\nVerdict  mostly computing; the largest avoidable stall is data, 20 % (" in cards[0]


def test_what_comes_again_and_again_is_a_habit_that_counts(tmp_path: Path) -> None:
    habit = attempt_of(tmp_path / "a", rows_with(dict.fromkeys(range(50, 200, 50), 2000.0)))
    assert habit.outliers is not None
    assert not habit.outliers.left_out
    assert habit.decisive is habit.summary
    assert attempt_of(tmp_path / "b", rows_with(dict.fromkeys(range(5, 200, 10), 200.0))).outliers is None
