"""The fit of computation, on made-up steps whose effects are known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from ddlprof.recommender.compute.step_parts import PARTS, total_s
from scripts.fit.combine_fit import Steps, fit_sds, gpu_effects, start
from scripts.fit.compute_errors import print_by_question, print_ends, summary, widened, widths_of

FACTORS = {"T4": 1.0, "V100-SXM2-16GB": 1.5, "A100-SXM4-40GB": 0.8}
"""What takes so many times as long as the parts say."""
CAPABILITY = {"T4": "7.5", "V100-SXM2-16GB": "7.0", "A100-SXM4-40GB": "8.0"}


def steps(jobs: int, spread: float = 0.05, gpus: tuple[str, ...] = tuple(FACTORS)) -> pd.DataFrame:
    random = np.random.default_rng(0)
    rows = []
    for job in range(jobs):
        parts = np.array([0.1, 0.02, 1e-4, 1e-3, 1e-4]) * random.uniform(0.5, 3)
        effect = math.exp(spread * random.normal())
        for gpu in gpus:
            seconds = float(total_s(parts)) * effect * FACTORS[gpu]
            rows.append(
                {"software": "made up", "family": f"job {job}", "job": f"job {job}", "gpu": gpu, "precision": "fp32",
                 "architecture": CAPABILITY[gpu], "batch": 32, "seconds": seconds,
                 **dict(zip(PARTS, parts, strict=True))}
            )  # fmt: skip
    return pd.DataFrame.from_records(rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("one", "other"), [("T4", "V100-SXM2-16GB"), ("T4", "A100-SXM4-40GB")])
def test_effects_of_gpus_are_those_of_the_measurements(one: str, other: str) -> None:
    gpus = gpu_effects(Steps(steps(15)), start())["gpus"]
    found = {
        gpu: np.exp(by["fp32"]["mean"][0]) * 0.1 + np.exp(by["fp32"]["mean"][1]) * 0.02 for gpu, by in gpus.items()
    }
    assert found[other] / found[one] == pytest.approx(FACTORS[other] / FACTORS[one], rel=0.15)


def test_a_gpu_that_was_not_measured_is_less_certain() -> None:
    found = gpu_effects(Steps(steps(15)), start())
    assert found["unmeasured"]["fp32"]["sd"][0] > 1.2 * found["gpus"]["T4"]["fp32"]["sd"][0]
    assert found["architectures"]["7.5"]["fp32"]["sd"][0] > found["gpus"]["T4"]["fp32"]["sd"][0]


def test_jobs_that_differ_more_get_a_larger_standard_deviation() -> None:
    like, unlike = (fit_sds(Steps(steps(25, spread))) for spread in (0.02, 0.6))

    def of_jobs(sds: dict[str, float]) -> float:
        return math.hypot(sds["family"], sds["job"])

    assert of_jobs(unlike) > 2 * of_jobs(like)


def cases(errors: list[float], source: str = "one") -> pd.DataFrame:
    rows = [
        {"what": "nothing measured", "source": source, "known": "operators", "knows": "operators, nothing",
         "model": f"model {n % 4}", "seconds": 1.0, "predicted_s": math.exp(error), "low_s": math.exp(error - 0.1),
         "high_s": math.exp(error + 0.1)}
        for n, error in enumerate(errors)
    ]  # fmt: skip
    return pd.DataFrame.from_records(rows)  # type: ignore[no-any-return]


def test_factors_of_intervals_make_them_hold_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    both = cases([0.02 * n for n in range(-10, 11)])
    widths = widths_of(both)
    (row,) = summary(widened(both, widths))
    assert row["coverage"] == pytest.approx(0.8, abs=0.06)
    assert widths["operators, nothing"] > 1.3
    print_by_question([row])
    assert f"| one | {row['mean']:.1%} / {row['median']:.1%}, " in capsys.readouterr().out


def test_ends_beyond_the_peak_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of 0.7 to 1.4 s are predicted, 10 % either way; the peak allows 0.8 s, and the ends are there or below."""
    all_cases = cases([-0.3, -0.2, 0.0, 0.3]).assign(least_s=0.8)
    ended = all_cases.assign(low_s=all_cases.low_s.clip(lower=0.8)).assign(seconds=[0.7, 1.0, 1.0, 1.0])
    for counted, do in ((all_cases, 2), (ended, 0)):
        print_ends(counted)
        assert f"| I have a laptop | operators | 4 | 2 | {do} | {int(do == 0)} |" in capsys.readouterr().out


def test_a_large_source_does_not_decide_the_factors_alone() -> None:
    many, few = cases([0.01] * 400, "many"), cases([0.4] * 40, "few")
    assert widths_of(pd.concat([many, few]))["operators, nothing"] > 3
