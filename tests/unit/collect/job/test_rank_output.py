"""Who writes what where, among the processes of one run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ddlprof.collect.job import environment
from ddlprof.collect.job.rank_output import RankOutput
from ddlprof.model.options import Options, ParentRun
from ddlprof.writing.writer import rank_files

ARGV = ["train.py"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*environment._RANK, *environment._LOCAL_RANK):
        monkeypatch.delenv(name, raising=False)


def first(out: str | None = "run") -> RankOutput:
    """Of the process that `ddlprof run` begins with."""
    return RankOutput(Options(out=out), "train", ARGV, None)


def child(of: RankOutput, name: str = "child") -> RankOutput:
    """Of a process that it started."""
    job = ParentRun(Options(), name, of.header.job_id, str(of.directory))
    return RankOutput(job.options, name, ARGV, job)


def opened(place: RankOutput) -> str | None:
    """Why it could not begin to write, if it could not."""
    place.open()
    place.writer.close()
    return place.writer.failure


def test_a_child_writes_nothing_before_it_trains() -> None:
    parent = first()
    before = sorted(Path("run").rglob("*"))
    started = child(parent)
    assert started.left_to_others()
    assert not parent.left_to_others()
    assert sorted(Path("run").rglob("*")) == before


def test_one_place_for_those_that_are_in_no_group() -> None:
    parent = first()
    assert opened(child(parent)) is None
    other = child(parent)
    other.change(pid=other.header.pid + 1)
    assert "another process of this run trains, too" in str(opened(other))
    assert [path.name for path in Path("run").glob("attempt-*")] == ["attempt-0"]


def test_a_process_that_became_another_program_is_the_next_attempt() -> None:
    parent = first()
    for attempt in range(3):
        place = child(parent)
        assert opened(place) is None
        assert place.header.attempt == attempt


def test_another_group_is_another_attempt() -> None:
    parent = first()
    for attempt in range(2):
        place = child(parent)
        place.join(0, 2)
        assert place.header.attempt == attempt
        assert opened(place) is None
    assert opened(parent) is None  # it trains, too, after the others
    assert parent.header.attempt == 2


def test_a_rank_that_was_taken_for_rank_0_leaves_no_trace() -> None:
    place = first(out=None)
    assert len(list(Path("ddlprof-runs").iterdir())) == 1
    place.join(1, 2)
    assert place.directory is None
    assert not any(Path("ddlprof-runs").iterdir())
    assert "rank 0 is not run by ddlprof" in str(opened(place))


def test_files_that_cannot_be_opened_for_a_moment_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = RankOutput(Options(out=str(tmp_path / "run")), "train", [], None)
    write = os.write

    def stale(file: int, data: bytes) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "write", stale)
    assert not place.open()
    assert place.writer.failure is None
    monkeypatch.setattr(os, "write", write)
    assert place.open()
    assert place.writer.failure is None
    assert rank_files(tmp_path / "run", 0, 0)[0].stat().st_size > 0


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES])
def test_what_stays_so_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    place = RankOutput(Options(out=str(tmp_path / "run")), "train", [], None)

    def fail(file: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    tries = 1
    while not place.open():
        tries += 1
    assert tries == (10 if number == errno.ESTALE else 1)
    assert place.writer.failure == f"{tmp_path / 'run'}: {os.strerror(number)}"
