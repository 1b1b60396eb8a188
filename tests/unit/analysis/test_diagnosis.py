"""Verdicts and the late rank."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.analysis.diagnosis import diagnose, find_late_rank, stall_means
from ddlprof.analysis.summary import TIMES, Spread, Summary
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
        ({"compute": 85, "data": 15, "data_fetch": 13, "data_prep": 1}, "DATA-BOUND", "warning", "fetch"),
        ({"compute": 70, "data": 30, "data_fetch": 2, "data_prep": 27}, "DATA-BOUND", "critical", "prep"),
        ({"compute": 70, "data": 30, "data_fetch": 15, "data_prep": 15}, "DATA-BOUND", "critical", None),
        ({"compute": 70, "data": 30}, "DATA-BOUND", "critical", None),
        ({"compute": 70, "h2d": 30}, "H2D-BOUND", "critical", None),
        ({"compute": 70, "other": 30}, "OTHER-BOUND", "critical", None),
        ({"compute": 70, "comm": 30}, "COMM-BOUND", "critical", None),
        (
            {"compute": 70, "comm": 30, "interconnect": 5, "network": 20, "straggler": 5},
            "NETWORK-BOUND", "critical", None,
        ),
        (
            {"compute": 70, "comm": 30, "interconnect": 16, "network": 0, "straggler": 14},
            "INTERCONNECT-BOUND", "warning", None,
        ),
        ({"compute": 70, "comm": 30, "straggler": 18}, "STRAGGLER-BOUND", "warning", None),
        ({"compute": 70, "comm": 30, "straggler": 8}, "COMM-BOUND", "critical", None),
        ({"compute": 95, "other": 5, "data": None}, "COMPUTE-BOUND", "ok", None),
    ],
)  # fmt: skip
def test_the_largest_stall_is_the_verdict(
    means: dict[str, float | None], name: str, severity: str, cause: str | None
) -> None:
    verdict = diagnose(summary(0.01, **means), 100, 1000)
    assert (verdict.name, verdict.severity, verdict.cause) == (name, severity, cause)


@pytest.mark.parametrize(
    ("means", "name"),
    [
        ({"compute": 100, "comm": None}, "UNDECIDED"),
        ({"compute": 20, "other": 80, "comm": None}, "UNDECIDED"),
        ({"compute": 60, "data": 40, "comm": None}, "DATA-BOUND"),
    ],
)
def test_what_was_not_measured_is_not_computing(means: dict[str, float | None], name: str) -> None:
    verdict = diagnose(summary(0.01, **means), 100, 1000)
    assert verdict.name == name
    assert verdict.reason == ("comm" if name == "UNDECIDED" else None)


def test_a_critical_verdict_needs_steps() -> None:
    means = summary(compute=70, data=30)
    assert diagnose(means, 20, None).severity == "critical"
    assert diagnose(means, 19, None).severity == "warning"
    assert diagnose(means, 2, None).reason == "few_steps"


def test_what_looking_may_have_caused_is_not_claimed() -> None:
    verdict = diagnose(summary(compute=0.08, other=0.02), 100, looking_ns=30_000)
    assert (verdict.name, verdict.severity, verdict.reason) == ("UNDECIDED", "unknown", "looking")
    assert diagnose(summary(compute=0.08, other=0.02), 100, looking_ns=10_000).name == "OTHER-BOUND"


def test_what_may_be_chance_is_not_claimed() -> None:
    verdict = diagnose(summary(compute=70, data=30, standard_error_ms=16), 100, None)
    assert (verdict.name, verdict.reason) == ("UNDECIDED", "noise")


def test_stalls_exclude_each_other() -> None:
    for parts in ({}, {"straggler": 10.0}, {"straggler": 10.0, "network": 0.0, "interconnect": 20.0}):
        stalls = stall_means(summary(compute=60, data=5, comm=30, other=5, **parts))
        assert sum(stalls.values()) == pytest.approx(40 * MS)


ALIKE = {"compute": 80, "data": 5, "comm": 15}


def test_the_late_rank_and_what_it_does_more() -> None:
    ranks = {0: summary(**ALIKE), 1: summary(**ALIKE), 2: summary(compute=81, data=19)}
    late = find_late_rank(ranks, {0: 5, 1: 5, 2: 90}, dict.fromkeys(range(3), 100))
    assert late is not None
    assert (late.rank, late.last_share, late.cause) == (2, 0.9, "data")
    assert (late.own_ns, late.typical_ns) == (19 * MS, 5 * MS)


def test_without_a_clear_cause_none_is_named() -> None:
    for own in ({"compute": 87, "data": 12, "comm": 1}, {"compute": 81, "data": 5, "comm": 14}):
        late = find_late_rank({0: summary(**ALIKE), 1: summary(**own)}, {0: 10, 1: 90}, {0: 100, 1: 100})
        assert late is not None
        assert late.cause is None


@pytest.mark.parametrize(("last", "late"), [({0: 50, 1: 50}, 100), ({0: 1, 1: 18}, 19), ({0: 0, 1: 0}, 0)])
def test_chance_makes_no_late_rank(last: dict[int, int], late: int) -> None:
    ranks = {0: summary(**ALIKE), 1: summary(compute=75, data=25)}
    assert find_late_rank(ranks, last, {0: late, 1: late}) is None
