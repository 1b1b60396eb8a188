"""Runs of a fleet as attempts of jobs, with the goodput of each job."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.model.checkpoint_files import LOADED, SAVED, CheckpointFile
from ddlprof.model.records import End
from ddlprof.model.trial import ReadFrom, SavedAt
from ddlprof.report.fleet.data import FleetRow, entries_of
from ddlprof.report.fleet.jobs import jobs_of
from ddlprof.report.fleet.jobs_text import JOBS
from ddlprof.store.fleet import search
from tests.golden.runs import MS, ORIGIN_UNIX_NS, header, manifest, step, write_rank
from tests.unit.report.fleet.test_fleet import Command, fleet, save

__all__ = ["fleet"]  # a fixture
MINUTE_NS = 60 * 10**9


def run(
    directory: Path, minutes: float, ends: bool, files: list[CheckpointFile], name: str = "train", first: str = "a"
) -> None:
    """A run of 60 steps on one A100, which began so many minutes after the first one."""
    origin = ORIGIN_UNIX_NS + round(minutes * MINUTE_NS)
    head = replace(header(0, 1, device="A100"), origin_unix_ns=origin, job_id=directory.name)
    end = [End("ok", 0, 60 * 10 * MS)] if ends else []
    write_rank(directory, head, [step(n) for n in range(60)], records=[*files, *end])
    described = replace(manifest(1), job_id=directory.name, origin_unix_ns=origin, created_unix_ns=origin, name=name)
    replace(described, host={"instance_type": "p4d.24xlarge"}, argv=["train.py", first]).write(directory)
    save(directory)


def listed(folder: Path, fleet: Callable[..., tuple[int, str, str]]) -> list[dict[str, object]]:
    code, shown, _ = fleet(str(folder), "--by", "job", "--format", "json")
    assert code == 0
    jobs: list[dict[str, object]] = json.loads(shown)["jobs"]
    return jobs


def test_a_run_that_read_what_another_wrote_continues_it(tmp_path: Path, fleet: Command) -> None:
    run(tmp_path / "1", 0, False, [CheckpointFile(SAVED, 40, "p", "f")])
    run(tmp_path / "2", 60 * 24 * 30, True, [CheckpointFile(LOADED, 0, "moved", "f")], name="resumed", first="b")
    run(tmp_path / "3", 1, True, [], first="c")
    (job, other) = listed(tmp_path, fleet)
    assert (job["attempts"], job["failures"], job["new_steps"]) == (2, 1, 100)
    assert [Path(path).name for path in job["paths"]] == ["1", "2"]  # type: ignore[attr-defined]
    assert (other["attempts"], other["failures"]) == (1, 0)


def test_the_same_command_again_after_a_bad_end_continues_it(tmp_path: Path, fleet: Command) -> None:
    run(tmp_path / "1", 0, False, [CheckpointFile(SAVED, 40, "p", "f")])
    run(tmp_path / "2", 2, True, [CheckpointFile(LOADED, 0, "p", "unknown")])
    run(tmp_path / "3", 4, True, [CheckpointFile(LOADED, 0, "p", "unknown")])  # the one before ended well
    jobs = listed(tmp_path, fleet)
    assert [job["attempts"] for job in jobs] == [2, 1]
    assert jobs[0]["new_steps"] == 100
    assert jobs[0]["waiting_h"] > 0.03  # type: ignore[operator]
    assert jobs[0]["lost_to_failures_usd"] > 0  # type: ignore[operator]


def test_formats(tmp_path: Path, fleet: Command) -> None:
    run(tmp_path / "1", 0, False, [CheckpointFile(SAVED, 40, "p", "f")])
    run(tmp_path / "2", 2, True, [CheckpointFile(LOADED, 0, "p", "f")])
    code, shown, _ = fleet(str(tmp_path), "--by", "job")
    assert code == 0
    assert "train  " in shown
    assert "Total  1 job" in shown
    _, text, _ = fleet(str(tmp_path), "--by", "job", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert tuple(row) == JOBS.table.heads
    code, _, error = fleet(str(tmp_path), "--by", "weather")
    assert code == 2
    assert "unknown --by 'weather'" in error
    _, text, _ = fleet(str(tmp_path), "--format", "csv")
    assert [row["failures"] for row in csv.DictReader(io.StringIO(text))] == ["0", "0"]  # each is one attempt


class Counted(tuple[SavedAt, ...]):
    """Checkpoints that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[SavedAt]:
        Counted.times += 1
        return super().__iter__()


@pytest.mark.parametrize("per_job", [1, 2, 300])
def test_the_work_grows_with_the_runs_and_not_with_their_square(per_job: int, tmp_path: Path) -> None:
    run(tmp_path / "1", 0, False, [CheckpointFile(SAVED, 40, "p", "f")])
    (entry,) = entries_of(search(tmp_path), 0, 0).entries
    (trial,) = entry.summary.trials
    rows = []
    for number in range(300):
        job, begin_s = number // per_job, 1e9 + 600 * number
        made = replace(
            trial, begin_unix_s=begin_s, saves=Counted([SavedAt(40, "p", f"{job}")]), reads=(ReadFrom("p", f"{job}"),)
        )
        summary = replace(entry.summary, job=f"{job}", created_unix_ns=round(begin_s * 1e9), trials=[made])
        rows.append(FleetRow(replace(entry, summary=summary), None, None, {}, {}, ()))
    Counted.times = 0
    jobs = jobs_of(rows)
    assert sorted({len(job.rows) for job in jobs}) == [per_job]
    assert Counted.times <= 4 * len(rows)
