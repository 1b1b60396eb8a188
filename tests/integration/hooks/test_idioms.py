"""Each idiom of `scripts/jobs/idioms.py`: steps, classes, parameters beside the loop's own clock and the plain run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "jobs"))

import idioms

from ddlprof.model.records import StepRow
from tests.integration.hooks.conftest import Profiling

STEPS = 32
WARM_UP = 12
CLASS_SHARE = 0.02
TRIES = 3
"""The machine is shared: what counts is that the classes agree at all, in one run of three."""
CLASSES = ("compute", "data", "other")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.parametrize("name", idioms.IDIOMS)
def test_idiom(name: str, profiling: Profiling) -> None:
    plain = idioms.train(name, STEPS)
    options = idioms.OPTIONS.get(name, ())
    data_calls = [word.replace("__main__", "idioms") for word in options if ":" in word]
    worst: dict[str, float] = {}
    for _ in range(TRIES):
        with profiling(data_calls=data_calls, may_note=True) as profile:
            profile.session.input.watch()
            found = idioms.train(name, STEPS)
        assert found["digest"] == plain["digest"]
        assert len(profile.rows) == len(found["rows"]) == STEPS
        worst = differences(profile.rows, found["rows"])
        if max(worst.values()) <= CLASS_SHARE:
            return
    pytest.fail(f"shares of the step by which classes differ from the loop's own clock: {worst}")


def differences(rows: list[StepRow], truth: list[dict[str, Any]]) -> dict[str, float]:
    """Of the means over steps that are neither warm-up nor looked into, in shares of the step."""
    pairs = [(row, true) for row, true in zip(rows, truth, strict=True) if row.step >= WARM_UP and not row.flags]
    step = sum(true["step"] for _, true in pairs)
    return {
        name: abs(sum((getattr(row, f"{name}_ns") or 0) / 1e9 - true.get(name, 0.0) for row, true in pairs)) / step
        for name in CLASSES
    }
