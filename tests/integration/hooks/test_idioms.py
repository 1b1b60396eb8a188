"""Each idiom of `scripts/jobs/idioms.py`: steps, classes, parameters beside the loop's own clock and the plain run.

On a virtual clock: layers take milliseconds of it in forward and backward, sleeps and burning loops what they say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "jobs"))

import idioms
import truth
import zeroing

from ddlprof.collect.steps.loop import OperatorLog
from ddlprof.model.records import StepRow
from scripts.lab.virtual_clock import VirtualClock, installed
from tests.integration.hooks.conftest import Profiling

STEPS = 32
WARM_UP = 12
FORWARD_NS, BACKWARD_NS = 1_000_000, 2_000_000
"""Of a linear layer."""
CLASS_SHARE = 0.001
CLASSES = ("compute", "data", "other")
COMPILED = [name for name in idioms.IDIOMS if name.startswith("compiled")]


class Layers(OperatorLog):
    """Linear layers are all operators that take time, on the clock; what torch's profiler would tell of them."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._since = 0
        self._linear = functional.linear
        self._done: list[tuple[int, int]] = []

    def start(self) -> bool:
        self._since, self._done = self._clock.perf_counter_ns(), []
        return True

    def stop(self) -> Any:
        return list(self._done)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self._linear(x, weight, bias)
        if len(x) == 1:  # acting on one state, which is nothing beside a batch
            return y
        self._compute(FORWARD_NS)
        if y.requires_grad:
            y.register_hook(lambda gradient: self._compute(BACKWARD_NS))
        return y

    def _compute(self, ns: int) -> None:
        begin = self._clock.perf_counter_ns() - self._since
        self._clock.work(ns)
        self._done.append((begin, begin + ns))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """What the loops of `idioms` wait, burn and compute passes on it."""
    with installed() as clock:
        layers = Layers(clock)

        for module in (idioms, truth, zeroing):
            monkeypatch.setattr(module, "BATCH", 16, raising=False)
        time = SimpleNamespace(sleep=clock.sleep, perf_counter=clock.perf_counter)
        for module in (idioms, truth, zeroing):
            monkeypatch.setattr(module, "time", time, raising=False)
            monkeypatch.setattr(module, "burn", lambda s=truth.PAUSE_S: clock.work(round(s * 1e9)), raising=False)
        monkeypatch.setattr(truth, "clock", clock.perf_counter)
        monkeypatch.setattr(functional, "linear", layers.linear)
        monkeypatch.setattr("ddlprof.collect.hooks.operators.LegacyProfiler", lambda torch: layers)
        yield clock


@pytest.mark.parametrize("name", [name for name in idioms.IDIOMS if name not in COMPILED])
def test_idiom(name: str, profiling: Profiling, clock: VirtualClock) -> None:
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
    pairs = [(row, true) for row, true in zip(rows, truth, strict=True) if row.step >= WARM_UP and not row.flags]
    step = sum(true["step"] for _, true in pairs)
    return {
        name: abs(sum((getattr(row, f"{name}_ns") or 0) / 1e9 - true.get(name, 0.0) for row, true in pairs)) / step
        for name in CLASSES
    }
