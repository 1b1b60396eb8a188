"""The trace of every run is one that viewers take, with every collective of the steps shown."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.analysis.run import analyse
from ddlprof.report.run import trace
from ddlprof.store import RunData
from tests.property.test_analysis import Job, jobs, simulate
from tests.trace_format import problems


@given(jobs(), st.lists(st.integers(0, 50_000), min_size=4, max_size=4))
@settings(deadline=None, max_examples=60)
def test_every_run_makes_a_right_trace(job: Job, shifts_us: list[int]) -> None:
    run = RunData(("run",), None, simulate(job, shifts_us))
    found = json.loads("".join(trace.render(run, analyse(run), (0, None))))
    assert problems(found) == []
    events = found["traceEvents"]
    shown = [e for e in events if "seq" in e.get("args", {})]
    assert len(shown) == sum(len(rank.collectives) for rank in run.ranks)
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    assert len(steps) == sum(len(rank.steps) for rank in run.ranks)
