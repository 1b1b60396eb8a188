"""Each idiom of `scripts/jobs/idioms.py`: steps, classes, parameters beside the loop's own clock and the plain run."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "jobs"))

import idioms
import truth
import zeroing

from ddlprof.model.records import StepRow
from tests.integration.hooks.conftest import Profiling
from tests.integration.hooks.virtual_operators import Clock, Operators

BATCH, LARGE = 8, 1000
STEPS, WARM_UP = 12, 6
OPERATOR_NS = 100_000
COMPUTING = {"gradient_scaler": -1, "replay_buffer": 7}
"""Operators more, or fewer, that are computing by ddlprof's definition and not by the loop's own: the scaler's update
comes after the step, and acting without gradients is a forward."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("compiled")) for name in idioms.IDIOMS]
"""Dynamo compiles nothing while operators take time; `test_compiled_functions` has the times of the same steps."""


@pytest.fixture(autouse=True)
def small_and_virtual(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the loops do besides torch's operators passes virtual time; tensors are small."""

    def burn(seconds: float = truth.PAUSE_S) -> None:
        clock.work(round(seconds * 1e9))

    for module in (idioms, truth, zeroing):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=clock.sleep))
        monkeypatch.setattr(module, "burn", burn)
    for module in (idioms, truth):
        monkeypatch.setattr(module, "BATCH", BATCH)
    monkeypatch.setattr(zeroing, "_LARGE", LARGE)
    monkeypatch.setattr(truth, "clock", clock.perf_counter)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.parametrize("name", NAMES)
def test_idiom(name: str, profiling: Profiling, clock: Clock, dynamo_forgets: None) -> None:
    plain = idioms.train(name, STEPS)
    options = idioms.OPTIONS.get(name, ())
    data_calls = [word.replace("__main__", "idioms") for word in options if ":" in word]
    operators = contextlib.nullcontext() if name.startswith("compiled") else Operators(clock, OPERATOR_NS)
    with profiling(data_calls=data_calls, may_note=True) as profile:
        profile.session.input.watch()
        with operators:
            found = idioms.train(name, STEPS)
    assert found["digest"] == plain["digest"]
    assert len(profile.rows) == len(found["rows"]) == STEPS
    more_ns = COMPUTING.get(name, 0) * OPERATOR_NS
    pairs = list(zip(profile.rows, found["rows"], strict=True))[WARM_UP:-1]  # the last has no next batch to wait for
    assert [measured(row) for row, _ in pairs] == [expected(true, more_ns) for _, true in pairs]


def measured(row: StepRow) -> list[int]:
    return [row.compute_ns, row.data_ns or 0, row.other_ns]


def expected(true: dict[str, Any], more_ns: int) -> list[int]:
    """What the loop's own clock says, which is exact to far less than a microsecond."""
    compute, data, other = (round(true.get(name, 0.0) * 1e6) * 1000 for name in ("compute", "data", "other"))
    return [compute + more_ns, data, other - more_ns]
