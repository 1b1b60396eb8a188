"""What is proposed first where something stopped the training."""

from __future__ import annotations

import pytest

from ddlprof.analysis.hang_facts import BUSY, FAILED, MISSING, Hang
from ddlprof.analysis.verdict import VerdictLine
from ddlprof.report.run.data import _verdict

MEASURED = VerdictLine("COMPUTE-BOUND", "ok", 0.9, "computing takes 90 % of the step", "a faster machine")


@pytest.mark.parametrize(
    ("kind", "saved", "words"),
    [
        (FAILED, 0, "first mend"),
        (FAILED, 2, "2 checkpoints: torchrun --max-restarts=3"),
        (MISSING, 2, "first mend"),  # ranks that hang are not started again
        (BUSY, 2, "a faster machine"),
    ],
)
def test_what_stopped_the_training_comes_first(kind: str, saved: int, words: str) -> None:
    told = _verdict(MEASURED, Hang(kind, kind != BUSY, [1], [0], None, "", 25, 3.0), saved)
    assert words in told.next
    assert ("max-restarts" in told.next) == (kind == FAILED and saved > 0)


def test_nothing_stopped() -> None:
    assert _verdict(MEASURED, None, 2) is MEASURED
