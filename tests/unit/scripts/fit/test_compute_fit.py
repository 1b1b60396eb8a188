"""The fit of computation, on made-up measurements of GPUs whose speeds are known."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from scripts.fit.compute_fit import fit_speeds, log_speed

SPEEDS = {"T4": 1.0, "V100": 3.0, "A100": 6.0}
"""Samples in a second of a job of cost 1; no data sheet says so."""


def measured(gpus: list[str]) -> pd.DataFrame:
    rows = [
        {"source": "made up", "job": f"job {cost}", "gpu": gpu, "precision": "fp32", "per_sample_s": cost / SPEEDS[gpu]}
        for cost in range(1, 21)
        for gpu in gpus
    ]  # fmt: skip
    return pd.DataFrame.from_records(rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("slow", "fast"), [("T4", "V100"), ("V100", "A100"), ("T4", "A100")])
def test_ratios_of_gpus_are_those_of_the_measurements(slow: str, fast: str) -> None:
    speeds = fit_speeds(measured(list(SPEEDS)))
    found = math.exp(log_speed(speeds, fast, "fp32") - log_speed(speeds, slow, "fp32"))
    assert found == pytest.approx(SPEEDS[fast] / SPEEDS[slow], rel=0.2)


def test_jobs_on_one_gpu_say_nothing_about_others() -> None:
    both = measured(["T4", "V100"])
    alone = pd.DataFrame([
        {"source": "made up", "job": f"alone {n}", "gpu": "A100", "precision": "fp32", "per_sample_s": 100.0}
        for n in range(20)
    ])  # fmt: skip
    fits = [fit_speeds(table) for table in (both, pd.concat([both, alone], ignore_index=True))]
    assert log_speed(fits[0], "A100", "fp32") == pytest.approx(log_speed(fits[1], "A100", "fp32"))
