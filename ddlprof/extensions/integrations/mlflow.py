"""MLflow: `ddlprof.extensions.integrations.mlflow.log(run)` inside `with mlflow.start_run():`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError
from ddlprof.extensions.integrations.scalars import EVERY, points

if TYPE_CHECKING:
    from ddlprof.api import Run

_MOST_AT_ONCE = 1000
"""Metrics that MLflow takes in one request."""


def log(run: Run, to: str | None = None, every: int = EVERY) -> int:
    """Logs the classes as metrics `ddlprof/compute_s`, ..., a point for every so many steps; returns their number.

    `to` is the id of a run; None: the one under way. Raises `UserError` if there is none.
    """
    try:
        import mlflow
        from mlflow.entities import Metric
    except ImportError:
        raise UserError("MLflow is not installed: pip install 'ddlprof[mlflow]'") from None
    if to is None:
        active = mlflow.active_run()
        if active is None:
            raise UserError("no run of MLflow is under way: call this inside mlflow.start_run(), or pass a run's id")
        to = active.info.run_id
    found = list(points(run, every))
    metrics = [
        Metric(name, value, round(point.unix_s * 1e3), point.step)
        for point in found
        for name, value in point.values.items()
    ]
    client = mlflow.MlflowClient()
    for begin in range(0, len(metrics), _MOST_AT_ONCE):
        client.log_batch(to, metrics=metrics[begin : begin + _MOST_AT_ONCE])
    return len(found)
