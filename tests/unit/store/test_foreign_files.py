"""Files that are not what their place in a run directory says: of another rank or job, or no files at all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.model.records import Note
from ddlprof.store import RunData, load_run
from tests.golden.runs import header, manifest, step, write_rank


def job(directory: Path, job_id: str = "job", ranks: int = 2, steps: int = 2) -> Path:
    for rank in range(ranks):
        write_rank(directory, replace(header(rank, ranks), job_id=job_id), [step(n) for n in range(steps)])
    replace(manifest(ranks), job_id=job_id).write(directory)
    return directory


def copy(source: Path, rank: int, target: Path, as_rank: int) -> None:
    for ending in ("jsonl", "steps"):
        shutil.copy(source / "attempt-0" / f"rank-{rank}.{ending}", target / "attempt-0" / f"rank-{as_rank}.{ending}")


def ranks_of(run: RunData) -> list[tuple[int, int]]:
    return [(rank.rank, len(rank.steps)) for rank in run.ranks]


def test_a_rank_of_another_attempt(tmp_path: Path) -> None:
    job(tmp_path)
    shutil.copytree(tmp_path / "attempt-0", tmp_path / "attempt-1")
    run = load_run(tmp_path)
    assert ranks_of(run) == [(0, 2), (1, 2)]
    assert {note.message for note in run.notes} == {"belongs to attempt 0 and is left out"}


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_rank_of_another_job(tmp_path: Path, has_manifest: bool) -> None:
    job(tmp_path / "run")
    copy(job(tmp_path / "other", "other", steps=9), 1, tmp_path / "run", 1)
    if not has_manifest:
        (tmp_path / "run" / "manifest.json").unlink()
    run = load_run(tmp_path / "run")
    assert ranks_of(run) == [(0, 2)]
    assert run.notes == [Note("attempt-0/rank-1.jsonl", "belongs to another job and is left out")]


def test_most_ranks_are_believed_before_a_manifest_that_none_agrees_with(tmp_path: Path) -> None:
    job(tmp_path)
    replace(manifest(2), job_id="other").write(tmp_path)
    run = load_run(tmp_path)
    assert ranks_of(run) == [(0, 2), (1, 2)]
    assert run.manifest is None
    assert [note.source for note in run.notes] == ["manifest.json"]


def test_one_rank_and_a_manifest_of_two_jobs_are_an_error(tmp_path: Path) -> None:
    job(tmp_path, ranks=1)
    replace(manifest(1), job_id="other").write(tmp_path)
    with pytest.raises(UserError, match=r"manifest.json and attempt-0/rank-0.jsonl are of two jobs: remove the one"):
        load_run(tmp_path)


def test_a_rank_of_a_job_of_another_size(tmp_path: Path) -> None:
    """Old files do not name their job."""
    job(tmp_path / "run", "", 3)
    copy(job(tmp_path / "other", "", 8), 2, tmp_path / "run", 2)
    run = load_run(tmp_path / "run")
    assert ranks_of(run) == [(0, 2), (1, 2)]
    assert run.notes == [Note("attempt-0/rank-2.jsonl", "belongs to a job of 8 ranks and is left out")]


def test_a_rank_that_its_job_cannot_have(tmp_path: Path) -> None:
    job(tmp_path)
    write_rank(tmp_path, header(5, 2), [step(0)])
    run = load_run(tmp_path)
    assert ranks_of(run) == [(0, 2), (1, 2)]
    assert run.notes == [Note("attempt-0/rank-5.jsonl", "cannot belong to a job of 2 ranks and is left out")]
