"""Faults in real jobs of gloo ranks are found: which rank, which collective, which line; and pauses are none."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.bench.hangs import AFTERWARDS, FAULTS, MORE_FAULTS, PAUSES, Case, Outcome, try_fault, try_pause
from scripts.lab.hosts import missing

pytestmark = pytest.mark.dist

SHORT = ("early-return",)
"""The fault of the short suite: a rank that stands alone."""
IN_CI = ("order", "stopped")
"""Faults of CI; `python -m scripts.bench.hangs` tries all of them, and so does the nightly workflow."""


def parameters(cases: tuple[Case, ...]) -> list[Any]:
    seen: set[str] = set()
    made = []
    for case in cases:
        marks = [pytest.mark.root] if case.root else []
        marks += [] if case.name in SHORT and case.name not in seen else [pytest.mark.slow]
        marks += [] if case.name in (*SHORT, *IN_CI) and case.name not in seen else [pytest.mark.nightly]
        seen.add(case.name)
        made.append(pytest.param(case, id=f"{case.name}-{case.world}", marks=marks))
    return made


def reported(outcome: Outcome) -> str:
    wrong = [name for name, right in outcome.right.items() if not right]
    return f"not right: {', '.join(wrong)}; found {outcome.found}"


@pytest.mark.parametrize("case", parameters((*FAULTS, *MORE_FAULTS)))
def test_a_fault_is_found(case: Case) -> None:
    if case.root and (reason := missing()):
        pytest.skip(reason)
    outcome = try_fault(case)
    assert outcome.all_right, reported(outcome)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("case", AFTERWARDS, ids=lambda case: case.name)
def test_a_fault_is_found_when_all_ranks_have_ended(case: Case) -> None:
    outcome = try_fault(case)
    assert outcome.all_right, reported(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", [PAUSES[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in PAUSES[1:])])
def test_a_long_pause_is_no_hang(name: str) -> None:
    outcome = try_pause(name, 2, 8.0)
    assert outcome.all_right, reported(outcome)
