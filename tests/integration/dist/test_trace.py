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

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def test_who_waits_for_whom_is_in_the_trace(job: Job, tmp_path: Path) -> None:
    job(tmp_path, 2, [*DDLPROF, "--out", "run", str(HERE / "waiting.py"), "slow_rank"])
    run = load_run(tmp_path / "run")
    found = json.loads("".join(trace.render(run, analyse(run))))
    assert problems(found) == []
    events = found["traceEvents"]
    assert [e["args"]["name"].split(" · ")[0] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    collectives = [e for e in events if e["ph"] == "X" and "wait_ms" in e["args"]]
    longest = max(collectives, key=lambda e: float(e["args"]["wait_ms"]))
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "sf")
    led = {(b["tid"], b["ts"]): e["pid"] for b, e in zip(begins, ends, strict=True)}
    assert led[longest["tid"], longest["ts"]] == 3 - longest["pid"]
    exposed, waits = (
        sum(e["args"][key] for e in events if e["ph"] == "X" and e["pid"] == 1 and e["name"].startswith(name))
        for key, name in (("comm_ms", "step "), ("exposed_ms", "wait"))
    )
    assert waits == pytest.approx(exposed, rel=0.05)
