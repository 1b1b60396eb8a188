"""The trace of a job of two real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.report.run import trace
from ddlprof.store import load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job
from tests.trace_format import problems

pytestmark = pytest.mark.dist


def test_the_fast_rank_waits_for_the_slow_one_in_the_trace(job: Job, tmp_path: Path) -> None:
    job(tmp_path, 2, [*DDLPROF, "--out", "run", str(HERE / "waiting.py"), "slow_rank"])
    run = load_run(tmp_path / "run")
    found = json.loads("".join(trace.render(run, analyse(run))))
    assert problems(found) == []
    events = found["traceEvents"]
    assert [e["args"]["name"].split(" · ")[0] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    flows = [(b["pid"], e["pid"]) for b, e in zip(*([e for e in events if e["ph"] == p] for p in "sf"), strict=True)]
    assert flows.count((1, 2)) > 0.8 * len(flows) > 0
    exposed, waits = (
        sum(e["args"][key] for e in events if e["ph"] == "X" and e["pid"] == 1 and e["name"].startswith(name))
        for key, name in (("comm_ms", "step "), ("exposed_ms", "wait"))
    )
    assert waits == pytest.approx(exposed, rel=0.05)
