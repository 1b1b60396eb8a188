"""Each idiom of `scripts/jobs/idioms.py`: steps, classes, parameters beside the loop's own clock and the plain run.

On a virtual clock: layers take milliseconds of it in forward and backward, sleeps and burning loops what they say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "jobs"))

import idioms
import sampling
import truth
import zeroing

from ddlprof.model.records import Flag, StepRow
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Layers, Profiling, on

STEPS = 24
WARM_UP = 12
CLASS_SHARE = 0.001
CLASSES = ("compute", "data", "other", "rollout")
COMPILED = [name for name in idioms.IDIOMS if name.startswith("compiled")]


@pytest.fixture
def idioms_clock(clock: VirtualClock, layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loops of `idioms` wait, burn and compute passes on it."""
    monkeypatch.setattr(truth, "clock", clock.perf_counter)
    for module in (idioms, sampling, truth, zeroing):
        monkeypatch.setattr(module, "BATCH", 16, raising=False)
        monkeypatch.setattr(module, "time", on(clock), raising=False)
        monkeypatch.setattr(module, "burn", lambda s=truth.PAUSE_S: clock.work(round(s * 1e9)), raising=False)


@pytest.mark.parametrize("name", [name for name in idioms.IDIOMS if name not in COMPILED])
def test_idiom(name: str, profiling: Profiling, idioms_clock: None) -> None:
    rows, found = trained(name, profiling)
    assert max(differences(rows, found).values()) <= CLASS_SHARE, differences(rows, found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, profiling: Profiling) -> None:
    """What is compiled cannot call a virtual clock; `scripts.bench.compatibility` compares its times."""
    trained(name, profiling)


def trained(name: str, profiling: Profiling) -> tuple[list[StepRow], list[dict[str, Any]]]:
    """The steps that were recorded and those of the loop; as many, and with the same parameters as in a plain run."""
    plain = idioms.train(name, STEPS)
    options = idioms.OPTIONS.get(name, ())
    data_calls = [word.replace("__main__", "idioms") for word in options if ":" in word]
    with profiling(data_calls=data_calls, may_note=True) as profile:
        profile.session.input.watch()
        found = idioms.train(name, STEPS)
    assert found["digest"] == plain["digest"]
    assert len(profile.rows) == len(found["rows"]) == STEPS
    return profile.rows, found["rows"]


def differences(rows: list[StepRow], truth: list[dict[str, Any]]) -> dict[str, float]:
    """Of the means over steps that are neither warm-up nor looked into, in shares of the step."""
    pairs = [
        (row, true)
        for row, true in zip(rows, truth, strict=True)
        if row.step >= WARM_UP and not row.flags & ~Flag.EVALUATION
    ]
    step = sum(true["step"] for _, true in pairs)
    return {
        name: abs(sum((getattr(row, f"{name}_ns") or 0) / 1e9 - true.get(name, 0.0) for row, true in pairs)) / step
        for name in CLASSES
    }
