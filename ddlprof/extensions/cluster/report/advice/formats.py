"""Advice for programs: JSON, and a CSV file with a row for each job and distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlprof.extensions.cluster.advice import Estimated, Scaled, SpreadCost
from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.report.advice.data import JobAdvice
from ddlprof.report.json_csv import csv_text, json_text

COLUMNS = (
    "job", "gpus", "closest", "step_s", "remaining_s", "spread_over", "placement", "slowdown", "slowdown_low",
    "slowdown_high", "wait_share", "wait_share_low", "wait_share_high", "wait_s", "wait_low_s", "wait_high_s",
    "why_not",
)  # fmt: skip
_SPREAD_OVER = {Level.RACK: "machines", Level.NETWORK: "racks"}


def as_json(jobs: Sequence[JobAdvice]) -> str:
    """All that the table shows, and more; times are seconds, and null means not known, or measured without interval."""
    return json_text({"jobs": [_job(job) for job in jobs]})


def as_csv(jobs: Sequence[JobAdvice]) -> str:
    """One row for each job and distance, with the figures of the JSON; a job of one GPU has none."""
    rows = [{**_of_job(job), **_spread(job, loss)} for job in jobs for loss in job.advice.losses]
    return csv_text(COLUMNS, [row.values() for row in rows])


def _job(job: JobAdvice) -> dict[str, Any]:
    spread = [_spread(job, loss) for loss in job.advice.losses]
    return {**_of_job(job), "spread": spread, "scaled": _scaled(job.advice.scaled), "basis": job.advice.basis}


def _scaled(scaled: Scaled | None) -> dict[str, Any] | None:
    """Twice as many GPUs with the same global batch."""
    if scaled is None:
        return None
    speed_up = _interval("speed_up", scaled.speed_up)
    return {"gpus": scaled.gpus, "placement": scaled.placement, **speed_up, "why_not": scaled.why_not}


def _of_job(job: JobAdvice) -> dict[str, Any]:
    advice = job.advice
    return {
        "job": advice.name,
        "gpus": advice.gpus,
        "closest": advice.closest,
        "step_s": advice.step_s,
        "remaining_s": job.rest_s,
    }


def _spread(job: JobAdvice, loss: SpreadCost) -> dict[str, Any]:
    """The cost at one distance: the longer step, the longest wait for closer GPUs, or why they are not known."""
    return {
        "spread_over": _SPREAD_OVER[loss.level],
        "placement": loss.placement,
        **_interval("slowdown", loss.slowdown),
        **_interval("wait_share", loss.wait_share),
        **_interval("wait", job.wait_s(loss), "_s"),
        "why_not": loss.why_not,
    }


def _interval(name: str, found: Estimated | None, unit: str = "") -> dict[str, float | None]:
    mean, low, high = found or (None, None, None)
    return {f"{name}{unit}": mean, f"{name}_low{unit}": low, f"{name}_high{unit}": high}
