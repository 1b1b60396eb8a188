"""The arithmetic of the true differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench import network as bench_network
from scripts.bench.network import Setting, Times, Truth

STEPS = {
    # strategy, hosts, ranks, rate, slow: step_s, data_s
    Setting("ddp", 1, 1): (0.100, 0.010),
    Setting("ddp", 1, 4): (0.115, 0.010),
    Setting("ddp", 2, 2, "400mbit"): (0.300, 0.010),
    Setting("ddp", 2, 2, "400mbit", "compute"): (0.340, 0.010),
    Setting("ddp", 2, 2, "400mbit", "data"): (0.340, 0.020),
    Setting("ddp", 2, 1, "400mbit"): (0.230, 0.010),
}


@pytest.fixture
def truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Truth:
    """Of two repeats, of which the second takes 2 ms more."""
    counted: dict[Setting, int] = {}

    def run(setting: Setting, folder: Path, steps: int) -> Times:
        step_s, data_s = STEPS[setting]
        counted[setting] = counted.get(setting, -1) + 1
        return Times(step_s - 0.001 + 0.002 * counted[setting], data_s)

    monkeypatch.setattr(bench_network, "run", run)
    truth = Truth(tmp_path, steps=10, repeats=2)
    truth.prepare(STEPS)
    assert set(counted.values()) == {1}  # twice each, and no more
    return truth


@pytest.mark.parametrize("setting", STEPS, ids=str)
def test_the_classes_add_up_to_the_step(setting: Setting, truth: Truth) -> None:
    assert sum(truth.classes(setting).values()) == pytest.approx(truth.mean(setting).step_s)


def test_one_rank_a_host_has_no_interconnect(truth: Truth) -> None:
    classes = truth.classes(Setting("ddp", 2, 1, "400mbit"))
    assert classes == pytest.approx(
        {"interconnect": 0, "network": 0.130, "straggler": 0, "data": 0.010, "compute": 0.090}
    )


def test_a_slow_rank_waits_for_nobody(truth: Truth) -> None:
    """Three of four ranks wait 40 ms."""
    for slow, data_s, compute_s in (("compute", 0.010, 0.100), ("data", 0.020, 0.090)):
        classes = truth.classes(Setting("ddp", 2, 2, "400mbit", slow))
        assert classes["straggler"] == pytest.approx(0.030)
        assert (classes["data"], classes["compute"]) == pytest.approx((data_s, compute_s))
        assert classes["interconnect"] == pytest.approx(0.015)


def test_repeatability_is_the_widest_span_as_a_share_of_the_step(truth: Truth) -> None:
    assert truth.repeatability(Setting("ddp", 2, 2, "400mbit")) == pytest.approx(0.002 / 0.300)
