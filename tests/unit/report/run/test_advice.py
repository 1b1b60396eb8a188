"""Words for a verdict where processors are scarce."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.analysis.diagnosis import Verdict
from ddlprof.analysis.late_rank import LateRank
from ddlprof.analysis.rules.compute import QUIET
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.thresholds import STARVED_SHARE
from ddlprof.report.run.advice import advise
from tests.unit.analysis.test_diagnosis import summary

COMPUTES = Verdict("COMPUTE-BOUND", "ok", share=0.98)
WAITS = Verdict("DATA-BOUND", "critical", "data", 0.4, "prep")
LATE = Verdict("STRAGGLER-BOUND", "critical", "straggler", 0.3)


def facts(queued_share: float | None) -> Facts:
    found = Facts(summary(compute=60, data=40, straggler=0), "cpu", 100, loader_workers=0, cores_per_rank=8)
    return replace(found, late_rank=LateRank(1, 0.9, "compute", 2e8, 1e8), queued_share=queued_share)


@pytest.mark.parametrize("verdict", [COMPUTES, WAITS, LATE], ids=lambda verdict: verdict.name)
def test_a_job_that_waits_for_processors_is_not_blamed_for_its_machine(verdict: Verdict) -> None:
    quiet, starved = (advise(verdict, facts(share)) for share in (STARVED_SHARE / 2, 0.43))
    assert starved[0] == f"{quiet[0]}; the main thread waited for a processor for 43 % of its time"
    assert starved[1] == QUIET
    assert quiet[1] != QUIET
    assert advise(verdict, facts(None)) == quiet
