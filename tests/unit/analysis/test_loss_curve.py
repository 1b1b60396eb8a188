"""The fit of loss curves: exact where there is no noise, and silent where there is nothing to foretell."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddlprof.analysis.loss_curve import Curve, fit, loss_curve
from ddlprof.model.records import LossValue


def values(loss: Callable[[float], float], updates: int = 2000, noise: float = 0.1, seed: int = 0) -> list[LossValue]:
    drawn = np.random.default_rng(seed)
    return [LossValue(n, loss(n) * (1 + noise * float(drawn.standard_normal()))) for n in range(0, updates, 4)]


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 1e-2), st.floats(0.1, 3.0), st.floats(-1.0, 2.0))
def test_a_curve_of_the_family_is_found_again(b0: float, b1: float, b2: float) -> None:
    curve = Curve(b0, b1, b2)
    assume(b2 >= 0 or curve.at(5000) < 0)  # a loss that has not been negative is taken for one that cannot be
    updates = np.linspace(10, 5000, 40)
    found = fit(updates, np.array([curve.at(each) for each in updates]))
    assert found is not None
    drop = curve.at(10) - curve.at(5000)
    assert max(abs(found.at(each) - curve.at(each)) for each in (10, 500, 2000, 5000)) < 0.01 * drop
    assert found.at(10_000) == pytest.approx(curve.at(10_000), abs=0.03 * drop)


def test_noise_of_batches_is_smoothed() -> None:
    curve = Curve(0.004, 0.3, 0.5)
    found = loss_curve(values(curve.at))
    assert found.is_predictable
    assert found.reason is None
    assert found.curve is not None
    assert found.error is not None
    assert found.error < 0.05
    assert found.curve.at(6000) == pytest.approx(curve.at(6000), rel=0.1)
    assert found.losses[0] > found.losses[-1]
    assert len(found.losses) == 40


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda n: 1.0, "does not fall"),
        (lambda n: 1 + n / 500, "does not fall"),
        (lambda n: 1 + 0.5 * math.cos(n / 150), "goes up again"),
        (lambda n: 2 - n / 1000 if n < 1000 else n / 1000, "up"),
        (lambda n: 2.0 if n < 1250 else 2 * math.exp(-(n - 1250) / 400), "misses the rest by"),
        (lambda n: 3.0 - n / 700 - (n / 1500) ** 4 / 4, ""),
        (lambda n: math.inf if n > 1900 else 1.0, "infinite or no number"),
    ],
)
def test_it_says_why_it_foretells_nothing(loss: Callable[[float], float], reason: str) -> None:
    noted = [each if math.isfinite(each.value or 0) else LossValue(each.update, None) for each in values(loss)]
    found = loss_curve(noted)
    assert not found.is_predictable
    assert found.reason is not None
    assert reason in found.reason


def test_too_few_losses_are_said() -> None:
    found = loss_curve(values(Curve(0.01, 1, 0).at)[:59])
    assert found.reason == "losses noted: 59, and it takes 60"
    assert loss_curve([]).reason == "losses noted: 0, and it takes 60"


def test_what_remains() -> None:
    curve = Curve(b0=0.01, b1=0.5, b2=0.2)
    assert curve.at(0) == pytest.approx(2.2)
    assert curve.updates_to(curve.at(700)) == pytest.approx(700)
    assert curve.updates_to(0.2) is None
    assert curve.updates_to(5.0) == 0.0
    # Half of the 2.0 that it falls: at 1.2, which is 1 / (0.01 s + 0.5) = 1.
    assert curve.updates_to_share(0.5) == pytest.approx(50)
    assert curve.at(curve.updates_to_share(0.9)) == pytest.approx(0.4)
