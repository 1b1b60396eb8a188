"""What the report says of the loss of the training: how far it fell, and what its curve foretells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.base.units import count, percent, significant
from ddlprof.store.tables import RankData


@dataclass(frozen=True)
class LossLine:
    """The loss of the lowest rank that noted any."""

    rank: int
    updates: int
    first: float | None
    """The mean of the first bin of losses, like `last`; None: there are too few."""
    last: float | None
    predictable: bool
    reason: str | None
    """Why it is not predictable."""
    error: float | None
    """The error of the curve on losses held out, as a share of what the loss fell."""
    floor: float | None
    """What the curve falls to in the end; None without a curve."""
    updates_to_90_percent: float | None
    """The updates after which nine tenths of all that the loss will ever fall are behind it."""


def loss_line(ranks: Sequence[RankData]) -> LossLine | None:
    """None where no loss was noted."""
    rank = min((each for each in ranks if each.training_loss), key=lambda each: each.header.rank, default=None)
    if rank is None:
        return None
    from ddlprof.analysis.loss_curve import loss_curve  # not at the top: many cards are of runs without losses

    found = loss_curve(rank.training_loss)
    curve = found.curve if found.is_predictable else None
    return LossLine(
        rank=rank.header.rank,
        updates=rank.training_loss[-1].update + 1,
        first=float(found.losses[0]) if len(found.losses) else None,
        last=float(found.losses[-1]) if len(found.losses) else None,
        predictable=found.is_predictable,
        reason=found.reason,
        error=found.error,
        floor=curve.b2 if curve else None,
        updates_to_90_percent=curve.updates_to_share(0.9) if curve else None,
    )


def loss_text(loss: LossLine) -> str | None:
    """The card's line; None where there is nothing to foretell."""
    if not loss.predictable or loss.error is None or loss.floor is None or loss.updates_to_90_percent is None:
        return None
    if loss.first is None or loss.last is None:
        return None
    fell = f"{significant(loss.first, 4)} -> {significant(loss.last, 4)} in {count(loss.updates, 'update')}"
    return (
        f"{fell}; predictable (error {percent(loss.error)} on its last third): falls to {significant(loss.floor, 4)},"
        f" nine tenths of the way after {loss.updates_to_90_percent:,.0f} updates"
    )
