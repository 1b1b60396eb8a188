"""The first half hour on a GPU: what it consists of, and that it runs to its end without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scripts.bench.gpu.cost import COPY, device_steps
from scripts.bench.gpu.experiment import Bench, Bound, Experiment, Failed, Row, call, perform, table
from scripts.bench.gpu.experiments import EXPERIMENTS

SCRIPT = Path(__file__).resolve().parents[5] / "scripts" / "bench" / "gpu" / "__main__.py"
OF_THE_ISSUE = (
    "tests", "compile-fullgraph", "resnet50", "gpt", "toy", "event-pair", "timeline", "one-window", "several-windows",
    "user-profiler", "nsight", "loader-0", "loader-0.5", "loader-1.5", "copy-pageable", "copy-pinned",
    "copy-prefetched", "copy-other-stream", "first-forward", "reduce-overhead", "graphed-callables",
    "whole-step-capture", "50-captures", "fused-adamw-scaler", "ddp", "fsdp2", "illegal-access", "abandoned-capture",
    "contexts", "stragglers", "fsdp2-two", "tensor-parallel",
)  # fmt: skip


def test_every_experiment_of_the_issue_is_there_once() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert set(OF_THE_ISSUE) <= set(names)
    assert all(experiment.run.__doc__ for experiment in EXPERIMENTS)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(torch.version.cuda is not None, reason="the simulated device needs a CPU build of torch")
def test_a_rehearsal_prints_every_row_and_what_the_simulation_knows_is_right(tmp_path: Path) -> None:
    chosen = ("loader-1.5", "copy-pinned", "open-capture", "nsight")
    kept = tmp_path / "rows.jsonl"
    words = [sys.executable, str(SCRIPT), "--rehearse", "--out", str(kept), "--only", *chosen]
    result = subprocess.run(words, capture_output=True, text=True, timeout=110)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert kept.read_text().splitlines() == lines
    rows = {row["name"]: row for row in map(json.loads, lines)}
    assert set(rows) == set(chosen), result.stderr
    assert all(f"| {name} |" in result.stdout for name in chosen)
    for name in chosen[:3]:
        assert rows[name]["status"] == "rehearsed", rows[name]
    # A copy is short beside the step: on a busy machine the host's clocks say too little of it.
    missed = {name: rows[name]["missed"] for name in chosen[:3] if rows[name]["missed"]}
    assert missed in ({}, {"copy-pinned": ["h2d_error"]})
    assert rows["loader-1.5"]["figures"]["data_ms"] > 0
    assert rows["copy-pinned"]["figures"]["h2d_ms"] > 0
    assert "the user's own error" in rows["open-capture"]["reason"]
    assert result.returncode == 0


def one(run: object, **more: object) -> Experiment:
    return Experiment("one", 30, run, **more)  # type: ignore[arg-type]


def test_a_limit_that_is_missed_and_a_failure_say_so(tmp_path: Path) -> None:
    def slow(bench: Bench) -> None:
        bench.figure("share", 0.3, Bound(0.2))
        bench.figure("count", 3, Bound(2, at_least=True))
        bench.figure("unknown", None, Bound(1))

    def broken(bench: Bench) -> None:
        bench.figure("share", 0.1, Bound(0.2))
        raise Failed("a job ended")

    missed = perform(one(slow), tmp_path, 30, False, False, 1)
    assert (missed.status, missed.missed) == ("missed", ["share", "unknown"])
    failed = perform(one(broken), tmp_path, 30, False, False, 1)
    assert (failed.status, failed.reason, failed.figures) == ("failed", "a job ended", {"share": 0.1})
    skipped = perform(one(slow, devices=2), tmp_path, 30, False, False, 1)
    assert (skipped.status, skipped.reason) == ("skipped", "needs 2 GPUs, 1 here")
    assert "count 3 (>= 2)" in "\n".join(table([missed]))


def test_a_rehearsal_judges_only_what_the_simulation_knows(tmp_path: Path) -> None:
    def run(bench: Bench) -> None:
        bench.figure("speed", 2, Bound(1))
        bench.figure("sleep", 2, Bound(1, known=True))

    row: Row = perform(one(run), tmp_path, 30, True, False, 0)
    assert (row.status, row.missed) == ("rehearsed", ["sleep"])
    row = perform(one(run, on_host=True), tmp_path, 30, True, False, 0)
    assert (row.status, row.missed) == ("rehearsed on the host", [])


@pytest.mark.slow
def test_what_hangs_is_killed_with_what_it_started_in_other_groups(tmp_path: Path) -> None:
    code = f"trap '' TERM; setsid sh -c 'echo $$ >{tmp_path / 'pid'}; exec sleep 600' & wait"
    with pytest.raises(Failed, match="killed after"):
        call(["sh", "-c", code], dict(os.environ), 2, tmp_path / "errors")
    pid = int((tmp_path / "pid").read_text())
    for _ in range(1200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child is still there")


def test_steps_of_a_timeline_begin_with_a_copy() -> None:
    events = []
    for step in range(4):
        begin = 10.0 * step
        events += [(COPY, "CUDA", begin, begin + 1), ("kernel", "CUDA", begin + 1, begin + 7), ("op", "CPU", 0, 99)]
    rows = device_steps(events)
    assert rows == [{"step": 10, "data": 3, "h2d": 1, "compute": 6}] * 3
