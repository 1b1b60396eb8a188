"""The results of `ddlprof fuse` as JSON, and its trials as a CSV file."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ddlprof.fusion.results import Measured, Prediction, Result, TrialGroup
from ddlprof.report.csv_cells import cell, csv_text
from ddlprof.report.lines import json_text

COLUMNS = ("trial", "fused", "steps", "loss", "eval_loss", "metric", "diverged")
"""Overheads one column for each name of the sweep, after `trial`."""


def as_json(result: Result) -> str:
    """Everything that was found; null is not measured."""
    return json_text(
        {
            "model": result.model,
            "optimizer": result.optimizer,
            "device": result.device,
            "threads": result.threads,
            "metric": result.metric,
            "trained": result.trained,
            "parts": [_part(part) for part in result.parts],
            "trials": [_plain(asdict(trial)) for trial in result.trials],
        }
    )


def as_csv(result: Result) -> str:
    """One row for each trial."""
    names = list(result.trials[0].values) if result.trials else []
    columns = (COLUMNS[0], *(str(cell(name)) for name in names), *COLUMNS[1:])
    rows = [
        {
            "trial": trial.number,
            **{f"sweep {name}": trial.values[name] for name in names},
            "fused": trial.fused,
            "steps": trial.steps,
            "loss": trial.loss,
            "eval_loss": trial.eval_loss,
            "metric": trial.metric,
            "diverged": trial.diverged,
        }
        for trial in result.trials
    ]
    return csv_text(columns, rows)


def _part(part: TrialGroup) -> dict[str, Any]:
    found = asdict(part)
    found["prediction"] = None if part.prediction is None else {**asdict(part.prediction), **_gains(part.prediction)}
    found["measured"] = None if part.measured is None else {**asdict(part.measured), **_gains(part.measured)}
    return found


def _gains(found: Prediction | Measured) -> dict[str, float | None]:
    return {"gain": found.gain, "gain_beside": found.gain_beside}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a value of the sweep that is none of its numbers is written as text."""
    return {
        name: _plain(value) if isinstance(value, dict)
        else str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }  # fmt: skip
