"""The line through timed steps, what it predicts, and when fusing is advised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.extensions.fusion.hyperparameters import chunks
from ddlprof.extensions.fusion.prediction import fit, sizes_to_time, verdict
from ddlprof.extensions.fusion.results import FusionPrediction, FusionTimes

positive = st.floats(1e-6, 10)


@given(positive, positive, st.sets(st.integers(1, 64), min_size=2, max_size=5))
def test_a_line_is_found_again(fixed: float, each: float, sizes: set[int]) -> None:
    found = fit([(size, fixed + each * size) for size in sizes])
    assert found == pytest.approx((fixed, each), rel=1e-4, abs=1e-6 * (fixed + each))


@given(st.dictionaries(st.integers(1, 64), positive, min_size=1, max_size=5))
def test_neither_part_is_negative(times: dict[int, float]) -> None:
    fixed, each = fit(list(times.items()))
    assert fixed >= 0
    assert each >= 0
    assert fixed + each > 0


def test_what_is_timed_is_not_what_is_predicted() -> None:
    assert sizes_to_time(2) == [1, 2]
    assert sizes_to_time(8) == [2, 6]
    assert sizes_to_time(31) == [7, 23]
    assert sizes_to_time(3) == [1, 2]


@pytest.mark.parametrize(
    ("fixed", "each", "beside", "fuse", "reason"),
    [
        (0.9, 0.1, None, True, "90 % of a step is the same for one model and for many: 4.71 times as fast"),
        (0.0, 1.0, None, False, "1.00 times as fast as one after another, less than 1.2"),
        (0.9, 0.1, 2, True, "4.71 times"),
        (0.9, 0.1, 5, False, "5 processes side by side are faster, fused is 0.94 times as fast"),
        (0.9, 0.1, 8, False, "8 processes side by side are faster, fused is 0.59 times as fast"),
    ],
)
def test_the_verdict(fixed: float, each: float, beside: int | None, fuse: bool, reason: str) -> None:
    found = FusionPrediction(8, (), fixed, each, 1.0, beside, 1.0 if beside else None)
    assert verdict(found)[0] is fuse
    assert reason in verdict(found)[1]


def test_gains() -> None:
    assert FusionTimes(8, 2.0, 1.0).gain == 4
    assert FusionTimes(8, 2.0, 1.0).gain_beside is None
    assert FusionTimes(8, 2.0, 1.0, beside=2, beside_s=1.5).gain_beside == 3


@given(st.integers(1, 100), st.integers(1, 100))
def test_groups_hold_every_trial_once_and_are_even(trials: int, most: int) -> None:
    groups = chunks(list(range(trials)), most)
    assert [number for group in groups for number in group] == list(range(trials))
    assert len(groups) == -(-trials // most)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
