"""Jobs of two ranks that have a fault, and one that has none: what the rules say of each."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddlprof.analysis.findings import Finding
from ddlprof.analysis.run import analyse
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def findings(job: Job, directory: Path, fault: str) -> dict[str, Finding]:
    job(directory, 2, [*DDLPROF, "--out", "run", str(HERE / "faulty.py"), fault])
    run = load_run(directory / "run")
    found = build_report(run, analyse(run), time.time_ns()).findings
    return {finding.rule: finding for finding in found if finding.severity != "info"}


def findings_with(rule: str, job: Job, directory: Path, fault: str) -> dict[str, Finding]:
    """The findings of the first of three jobs in which there is one of this rule: others may disturb a job."""
    for attempt in range(3):
        (folder := directory / str(attempt)).mkdir()
        found = findings(job, folder, fault)
        if rule in found:
            break
    return found


def test_one_late_rank(job: Job, tmp_path: Path) -> None:
    found = findings(job, tmp_path, "late")
    assert found["straggler"].ranks == (1,)
    assert found["straggler"].gain_s


def test_uneven_input_by_turns(job: Job, tmp_path: Path) -> None:
    found = findings_with("uneven_input", job, tmp_path, "uneven")
    assert "correlation" in found["uneven_input"].evidence
    assert "straggler" not in found


def test_samples_of_uneven_length_by_turns(job: Job, tmp_path: Path) -> None:
    found = findings_with("uneven_input", job, tmp_path, "lengths")
    assert "values of a step differ" in found["uneven_input"].evidence
    assert "length" in found["uneven_input"].next
    assert "straggler" not in found


def test_tiny_buckets(job: Job, tmp_path: Path) -> None:
    found = findings(job, tmp_path, "buckets")
    assert "bucket_cap_mb" in found["bucket_size"].next
    assert "no_sync" not in found


def test_gradients_exchanged_after_each_micro_batch(job: Job, tmp_path: Path) -> None:
    found = findings(job, tmp_path, "synchronised")
    assert "no_sync()" in found["no_sync"].next
    assert "4 times" in found["no_sync"].evidence
    assert not {"bucket_size", "gradient_traffic"} & found.keys()


def test_nothing_is_found_where_nothing_is_wrong(job: Job, tmp_path: Path) -> None:
    assert not {"straggler", "uneven_input", "bucket_size", "no_sync"} & findings(job, tmp_path, "none").keys()
