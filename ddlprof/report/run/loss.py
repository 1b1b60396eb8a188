"""The line of a report about the loss over the training."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.analysis.run import Attempt


@dataclass(frozen=True)
class LossLine:
    """The loss of the lowest rank that recorded one."""

    rank: int
    updates: int
    first: float | None
    """The mean of the first bin of losses, like `last`; None: there are too few."""
    last: float | None
    predictable: bool
    reason: str | None
    """The reason why the loss is not predictable."""
    error: float | None
    """The error of the curve on losses held out, as a share of what the loss fell."""
    floor: float | None
    """The loss that the curve approaches in the end; None without a curve."""
    updates_to_90_percent: float | None
    """The number of updates after which the loss has made nine tenths of its whole fall."""


def loss_line(headline: Attempt) -> LossLine | None:
    """The line about the loss; None where no loss was recorded."""
    rank, found = headline.loss_rank, headline.loss_curve
    if rank is None or found is None:
        return None
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
