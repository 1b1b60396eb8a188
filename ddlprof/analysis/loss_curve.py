"""Fits a curve to the loss of a training, and decides whether the curve can be extrapolated.

l(s) = 1 / (b0 s + b1) + b2 after s updates, which gradient descent gives for a loss with a sublinear rate of
convergence. Sources: Zhang, Stafman, Or, Freedman: "SLAQ", SoCC 2017; Peng et al.: "Optimus", EuroSys 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import (
    LOSS_BINS,
    LOSS_DROP_SURE,
    LOSS_ERROR,
    LOSS_FORETOLD,
    LOSS_HELD_OUT,
    LOSS_RISE_SHARE,
    LOSS_VALUES,
)
from ddlprof.model.records import LossValue

Array = NDArray[np.float64]
_TRIED = 60
"""The number of values of b1 / b0 tried in each round; each round's are closer together."""


@dataclass(frozen=True)
class Curve:
    """The curve l(s) = 1 / (b0 s + b1) + b2."""

    b0: float
    b1: float
    b2: float
    """The limit of the loss."""

    def at(self, updates: float) -> float:
        """The loss after so many updates."""
        return 1.0 / (self.b0 * updates + self.b1) + self.b2

    def updates_to(self, loss: float) -> float | None:
        """The number of updates after which the loss is reached; None: never."""
        if loss <= self.b2:
            return None
        return max((1.0 / (loss - self.b2) - self.b1) / self.b0, 0.0)

    def updates_to_share(self, share: float) -> float:
        """The number of updates after which this share (below 1) of the whole fall of the loss is done."""
        return self.b1 / self.b0 * share / (1.0 - share)


@dataclass(frozen=True)
class LossCurve:
    """The losses of a run and the curve fitted to them."""

    updates: Array
    """The middle of each bin. Losses are binned, as those of single batches are noisy."""
    losses: Array
    """The mean loss in each bin."""
    curve: Curve | None = None
    """The fit to all bins; None: see `reason`."""
    error: float | None = None
    """The mean distance of the last third's bins from a curve fitted to the bins before, as a share of the loss's
    fall."""
    reason: str | None = None
    """Why there is no extrapolation."""

    @property
    def is_predictable(self) -> bool:
        """Whether the curve can be extrapolated."""
        return self.reason is None


def loss_curve(values: Sequence[LossValue]) -> LossCurve:
    """The curve of the losses noted, or the reason why there is none."""
    finite = [(each.update, each.value) for each in values if each.value is not None]
    empty = LossCurve(np.zeros(0), np.zeros(0))
    if len(finite) < len(values):
        return _without(empty, "the loss became infinite or no number")
    if len(finite) < LOSS_VALUES:
        return _without(empty, f"losses noted: {len(finite):,}, and it takes {LOSS_VALUES}")
    updates, losses, errors = _bins(np.array(finite, dtype=np.float64))
    found = LossCurve(updates, losses)
    drop = float(losses[0] - losses.min())
    if drop <= LOSS_DROP_SURE * float(np.hypot(errors[0], errors[losses.argmin()])):
        return _without(found, "the loss does not fall by more than it varies from batch to batch")
    rises = np.diff(losses)
    sure = rises > LOSS_DROP_SURE * np.hypot(errors[1:], errors[:-1])
    if float(rises[sure].sum()) > LOSS_RISE_SHARE * drop:
        return _without(found, "the loss goes up again by much of what it falls")
    if losses[-1] - losses.min() > LOSS_RISE_SHARE * drop:
        return _without(found, "the loss has gone up again")
    early = updates < updates[-1] * (1 - LOSS_HELD_OUT)
    before, curve = fit(updates[early], losses[early]), fit(updates, losses)
    if before is None or curve is None:
        return _without(found, "the loss falls ever faster, not ever more slowly")
    told = np.array([before.at(each) for each in updates[~early]])
    error = float(np.abs(told - losses[~early]).mean()) / drop
    reason = None
    if error > LOSS_ERROR:
        reason = f"a curve fitted to the first two thirds misses the rest by {error:.0%} of what the loss fell"
    elif curve.updates_to_share(0.9) > LOSS_FORETOLD * updates[-1]:
        reason = "the loss falls as along a line: nothing says yet where it ends"
    return LossCurve(updates, losses, curve, error, reason)


def fit(updates: Array, losses: Array) -> Curve | None:
    """The least-squares fit; None if no curve falls ever more slowly.

    With c = b1 / b0 the curve is a / (s + c) + b2, which is linear in a and b2. So only c is searched for, on a grid
    that is refined around the best value.
    """
    low, high = np.log(updates[-1] * 1e-4), np.log(updates[-1] * 1e2)
    best = None
    for _ in range(4):
        tried = np.linspace(low, high, _TRIED)
        found = [_linear(updates, losses, float(np.exp(each))) for each in tried]
        index = min(range(_TRIED), key=lambda place: found[place][0])
        best = (float(np.exp(tried[index])), *found[index])
        width = (high - low) / _TRIED
        low, high = tried[index] - 2 * width, tried[index] + 2 * width
    if best is None or best[2] <= 0:
        return None
    c, _, a, b2 = best
    return Curve(1.0 / a, c / a, b2)


def _linear(updates: Array, losses: Array, c: float) -> tuple[float, float, float]:
    """The sum of squares, a and b2 of the best curve with this c.

    a is not negative, and b2 is not negative if no loss is, as in Optimus.
    """
    x = 1.0 / (updates + c)
    deviation = x - x.mean()
    a = max(float((deviation * losses).sum() / max((deviation**2).sum(), 1e-300)), 0.0)
    b2 = float(losses.mean() - a * x.mean())
    if b2 < 0 <= losses.min():
        a, b2 = float(x @ losses / (x @ x)), 0.0
    return float(((a * x + b2 - losses) ** 2).sum()), a, b2


def _bins(values: Array) -> tuple[Array, Array, Array]:
    """Updates, mean losses and their standard errors, in bins with equal numbers of values."""
    parts = np.array_split(values, min(LOSS_BINS, len(values) // 5))
    means = np.array([part.mean(axis=0) for part in parts])
    errors = np.array([part[:, 1].std(ddof=1) / np.sqrt(len(part)) for part in parts])
    return means[:, 0], means[:, 1], errors


def _without(found: LossCurve, reason: str) -> LossCurve:
    return LossCurve(found.updates, found.losses, reason=reason)
