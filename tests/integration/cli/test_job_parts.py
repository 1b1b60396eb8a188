"""The parts of a real job's wall time: a job that ends, one that is killed, one that is measured for some steps."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AFTER = """
torch.save(model.state_dict(), "model.pt")
model.eval()
with torch.no_grad():
    for x, y in DataLoader(loader.dataset, batch_size=16):
        model(x)
        time.sleep(0.05)
time.sleep(0.3)
"""
KILLED = """
import os, signal
entries = "run/attempt-0/rank-0.jsonl"
size = lambda: os.path.exists(entries) and os.path.getsize(entries)
for _ in range(3):  # entries: the last steps, and then counters, about once a second
    before = size()
    while size() == before:
        time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
DDLPROF = Callable[..., Any]


def job(ddlprof: DDLPROF) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ddlprof("report", "run", "--format", "json").stdout)["job"]
    assert sum(seconds or 0 for seconds in found["parts_s"].values()) == pytest.approx(found["wall_s"])
    return found


@pytest.mark.slow
def test_a_job_that_evaluates_and_saves_at_its_end(
    ddlprof: DDLPROF, write_training: Callable[..., str], tmp_path: Path
) -> None:
    script = write_training(60, AFTER)
    begin = time.monotonic()
    result = ddlprof("run", "--out", "run", script)
    elapsed_s = time.monotonic() - begin
    assert result.returncode == 0, result.stderr
    found = job(ddlprof)
    parts = found["parts_s"]
    assert (found["until"], found["timed"], found["steps"]) == ("end", True, 60)
    assert (found["evaluations"], found["checkpoints"], found["epochs"]) == (1, 1, 4)
    assert parts["evaluation"] >= 0.2
    assert parts["end"] >= 0.3
    assert parts["checkpoint"] > 0
    assert parts["steps"] > 0.15
    assert parts["evaluation"] + parts["end"] + parts["steps"] < found["wall_s"] <= elapsed_s + 0.02
    assert b"\nJob      " in result.stderr + result.stdout
    ddlprof("export", "run", "--format", "csv", "--out", "csv")
    rows = csv.DictReader((tmp_path / "csv" / "job.csv").read_text().splitlines())
    assert {row["part"]: float(row["seconds"]) for row in rows} == parts


@pytest.mark.slow
def test_a_job_that_is_killed_counts_until_its_last_entry(ddlprof: DDLPROF, write_training: Callable[..., str]) -> None:
    ddlprof("run", "--quiet", "--out", "run", write_training(40, KILLED))
    found = job(ddlprof)
    assert found["until"] == "entry"
    assert found["steps"] == 40
    assert found["parts_s"]["end"] > 0  # a counter about once a second
    assert "until its last entry" in ddlprof("report", "run").stdout.decode()


@pytest.mark.slow
def test_measuring_that_ends_early_does_not_know_the_rest(ddlprof: DDLPROF, write_training: Callable[..., str]) -> None:
    ddlprof("run", "--quiet", "--stop-after", "20", "--out", "run", write_training(500))
    found = job(ddlprof)
    assert found["until"] == "stopped"
    assert found["parts_s"]["end"] is None
    assert found["steps"] < 500
    assert "until measuring stopped" in ddlprof("report", "run").stdout.decode()
