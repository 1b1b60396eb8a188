"""Weights & Biases: `ddlprof.extensions.integrations.wandb.log(run, wandb.init(project=...))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError
from ddlprof.extensions.integrations.scalars import EVERY, PREFIX, points

if TYPE_CHECKING:
    from ddlprof.api import Run

STEP = f"{PREFIX}step"
"""The axis of our scalars: what was logged before has steps of its own, and they only grow."""


def log(run: Run, to: Any = None, every: int = EVERY) -> int:
    """Logs the classes as `ddlprof/compute_s`, ..., a point for every so many steps; returns their number.

    `to` is the run of `wandb.init()`; None: the one under way. Raises `UserError` if there is none.
    """
    if to is None:
        try:
            import wandb
        except ImportError:
            raise UserError("Weights & Biases is not installed: pip install 'ddlprof[wandb]'") from None
        to = wandb.run
        if to is None:
            raise UserError("no run of Weights & Biases is under way: pass the one that wandb.init() returns")
    to.define_metric(f"{PREFIX}*", step_metric=STEP)
    found = list(points(run, every))
    for point in found:
        to.log({STEP: point.step, **point.values})
    return len(found)
