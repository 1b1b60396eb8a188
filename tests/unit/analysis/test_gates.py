"""Limits of --fail-on: what they mean, and when one is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.analysis.compare import Difference, Shift
from ddlprof.analysis.gates import BROKEN, IN_NOISE, KEPT, judge, parse_gates
from ddlprof.base.errors import UserError

MS = 1e6
STEP = Difference("step", 100 * MS, 104 * MS, Shift(4 * MS, -1 * MS, 9 * MS), None)


def state(gate: str, grew_ms: float, low_ms: float | None) -> str:
    high_ms = None if low_ms is None else 2 * grew_ms - low_ms
    shift = Shift(grew_ms * MS, None if low_ms is None else low_ms * MS, None if high_ms is None else high_ms * MS)
    data = Difference("data", 10 * MS, (10 + grew_ms) * MS, shift, None)
    return judge(parse_gates(gate), [STEP, data])[0].state


@pytest.mark.parametrize(
    ("gate", "grew_ms", "low_ms", "expected"),
    [
        ("data=5%", 6, 1, BROKEN),  # 5 % of A's step of 100 ms, not of its data wait of 10 ms
        ("data=5%", 4, 1, KEPT),
        ("data=5%", 6, -1, IN_NOISE),
        ("data=5%", 6, None, IN_NOISE),
        ("data=5%", 5, 1, KEPT),  # not more than the limit
        ("data=5%", -6, -7, KEPT),
        ("data=5.5ms", 6, 1, BROKEN),
        ("data=.007s", 6, 1, KEPT),
        ("data=5000us", 6, 1, BROKEN),
        ("data=0%", 0.5, 0.1, BROKEN),
        ("data=0%", -0.5, -0.7, KEPT),
    ],
)
def test_a_gate_is_broken_beyond_its_limit_and_beyond_the_noise(
    gate: str, grew_ms: float, low_ms: float | None, expected: str
) -> None:
    assert state(gate, grew_ms, low_ms) == expected


@pytest.mark.parametrize(
    ("gate", "own", "expected"),
    [
        ("step=3%", Shift(20 * MS, 8 * MS, 32 * MS), BROKEN),
        ("step=25%", Shift(20 * MS, 8 * MS, 32 * MS), KEPT),
        ("step=3%", Shift(20 * MS, -8 * MS, 48 * MS), IN_NOISE),
    ],
)
def test_a_step_that_is_longer_without_its_waiting_for_processors_breaks_a_gate(
    gate: str, own: Shift, expected: str
) -> None:
    (judged,) = judge(parse_gates(gate), [replace(STEP, own=own)])
    assert judged.state == expected
    assert judged.difference_ns == (20 * MS if expected == BROKEN else 4 * MS)


def test_several_gates() -> None:
    gates = parse_gates(" step = 3 % , data_fetch=1ms,")
    assert [(gate.name, gate.share, gate.ns) for gate in gates] == [("step", 0.03, None), ("data_fetch", None, MS)]
    assert parse_gates("") == []


@pytest.mark.parametrize(
    "text", ["5%", "step", "step=", "step=5", "step=-1%", "step=1h", "steps=5%", "=5%", "step=\u0665%"]
)
def test_what_is_no_gate(text: str) -> None:
    with pytest.raises(UserError, match="--fail-on"):
        parse_gates(text)


def test_a_class_that_was_not_measured_cannot_be_judged() -> None:
    with pytest.raises(UserError, match="data was not measured in B"):
        judge(parse_gates("data=5%"), [STEP, Difference("data", MS, None, None, None)])
