"""Verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.analysis.diagnosis import diagnose, stall_means
from ddlprof.analysis.summary import Spread, Summary
from ddlprof.model.classes import TIMES
from tests.golden.runs import MS


def summary(standard_error_ms: float = 0.01, **means_ms: float | None) -> Summary:
    """Means in milliseconds; classes not named are a measured zero, parts not named are unknown."""
    named: dict[str, Any] = dict.fromkeys(("compute", "data", "h2d", "comm", "other"), 0.0) | means_ms
    named["step"] = sum(named[c] or 0 for c in ("compute", "data", "h2d", "comm", "other"))
    spreads = {
        name: Spread(None if (mean := named.get(name)) is None else mean * MS, None, None, standard_error_ms * MS)
        for name in TIMES
    }
    return Summary(spreads, 100, 0)


@pytest.mark.parametrize(
    ("means", "name", "severity", "cause"),
    [
        ({"compute": 95, "data": 5}, "COMPUTE-BOUND", "ok", None),
        ({"compute": 65, "data": 35, "data_fetch": 31, "data_prep": 1}, "DATA-BOUND", "critical", "fetch"),
        ({"compute": 70, "data": 30, "data_fetch": 2, "data_prep": 27}, "DATA-BOUND", "critical", "prep"),
        ({"compute": 70, "data": 30, "data_fetch": 15, "data_prep": 15}, "DATA-BOUND", "critical", None),
        ({"compute": 70, "data": 30}, "DATA-BOUND", "critical", None),
        ({"compute": 70, "h2d": 30}, "H2D-BOUND", "critical", None),
        ({"compute": 70, "other": 30}, "OTHER-BOUND", "critical", None),
        ({"compute": 70, "comm": 30}, "COMM-BOUND", "critical", None),
        (
            {"compute": 60, "comm": 40, "interconnect": 5, "network": 30, "straggler": 5},
            "NETWORK-BOUND", "critical", None,
        ),
        (
            {"compute": 40, "comm": 60, "interconnect": 31, "network": 0, "straggler": 29},
            "INTERCONNECT-BOUND", "critical", None,
        ),
        ({"compute": 50, "comm": 50, "straggler": 32}, "STRAGGLER-BOUND", "critical", None),
        ({"compute": 60, "comm": 40, "straggler": 8}, "COMM-BOUND", "critical", None),
        ({"compute": 20, "other": 80, "rollout": 75}, "ROLLOUT-BOUND", "critical", None),
        ({"compute": 20, "other": 80, "rollout": 30}, "OTHER-BOUND", "critical", None),
        ({"compute": 95, "other": 5, "data": None}, "COMPUTE-BOUND", "ok", None),
    ],
)  # fmt: skip
def test_the_largest_stall_is_the_verdict(
    means: dict[str, float | None], name: str, severity: str, cause: str | None
) -> None:
    verdict = diagnose(summary(0.01, **means), 100, 1000)
    assert (verdict.name, verdict.severity, verdict.cause) == (name, severity, cause)


@pytest.mark.parametrize(
    ("means", "name", "severity"),
    [
        ({"compute": 96, "data": 4}, "LAUNCH-BOUND", "warning"),
        ({"compute": 75, "data": 25}, "LAUNCH-BOUND", "warning"),  # what data would gain is less
        ({"compute": 70, "data": 30}, "DATA-BOUND", "critical"),
    ],
)
def test_a_device_that_waits_for_its_host_does_not_bound_the_step(
    means: dict[str, float | None], name: str, severity: str
) -> None:
    verdict = diagnose(summary(0.01, **means), 100, 1000, launch_bound=True)
    assert (verdict.name, verdict.severity) == (name, severity)


@pytest.mark.parametrize(
    ("means", "name"),
    [
        ({"compute": 100, "comm": None}, "UNDECIDED"),
        ({"compute": 20, "other": 80, "comm": None}, "UNDECIDED"),
        ({"compute": 60, "data": 40, "comm": None}, "DATA-BOUND"),
    ],
)
def test_what_was_not_measured_is_not_computing(means: dict[str, float | None], name: str) -> None:
    verdict = diagnose(summary(0.01, **means), 100, 1000, ranks=2)
    assert verdict.name == name
    assert verdict.reason == ("comm_unmeasured" if name == "UNDECIDED" else None)


def test_on_a_device_without_a_clock_nothing_bounds_the_step() -> None:
    """What the host waits for, the device may hide."""
    for means in ({"other": 100}, {"data": 60, "other": 40}):
        verdict = diagnose(summary(0.01, compute=None, h2d=None, comm=None, **means), 100, 1000)
        assert (verdict.name, verdict.reason) == ("UNDECIDED", "device_unmeasured")


def test_what_looking_may_have_caused_is_not_claimed() -> None:
    verdict = diagnose(summary(compute=0.08, other=0.02), 100, overhead_ns=30_000)
    assert (verdict.name, verdict.severity, verdict.reason) == ("UNDECIDED", "unknown", "looking")
    assert diagnose(summary(compute=0.08, other=0.02), 100, overhead_ns=10_000).stall == "other"


def test_what_may_be_chance_is_not_claimed() -> None:
    verdict = diagnose(summary(compute=70, data=30, standard_error_ms=16), 100, None)
    assert (verdict.name, verdict.reason) == ("UNDECIDED", "noise")


def test_stalls_exclude_each_other() -> None:
    for parts in ({}, {"straggler": 10.0}, {"straggler": 10.0, "network": 0.0, "interconnect": 20.0}, {"rollout": 4.0}):
        stalls = stall_means(summary(compute=60, data=5, comm=30, other=5, **parts))
        assert sum(stalls.values()) == pytest.approx(40 * MS)


def test_a_job_whose_communication_is_not_measured_is_not_called_compute_bound() -> None:
    unmeasured = summary(compute=100, comm=None)
    verdict = diagnose(unmeasured, 100, None, ranks=2)
    assert (verdict.name, verdict.reason, verdict.share) == ("UNDECIDED", "comm_unmeasured", 1.0)
    assert diagnose(summary(compute=70, other=30, comm=None), 100, None, ranks=2).reason == "comm_unmeasured"
    assert diagnose(unmeasured, 100, None, ranks=1).name == "COMPUTE-BOUND"
    assert diagnose(summary(compute=60, data=40, comm=None), 100, None, ranks=2).name == "DATA-BOUND"
    assert diagnose(summary(compute=100), 100, None, ranks=2).name == "COMPUTE-BOUND"
