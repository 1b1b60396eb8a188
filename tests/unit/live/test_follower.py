"""The files of a run as they are listed and read: what cannot be read holds nothing up, and many ranks neither."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.run import Attempt, analyse
from ddlprof.live import follower as module
from ddlprof.live import words
from ddlprof.live.follower import RunFollower
from ddlprof.live.loop import last_word
from ddlprof.live.snapshot import Observer, Snapshot
from ddlprof.model import codec
from ddlprof.store import RunData
from scripts.bench.synthetic_job import write_job
from tests.golden.runs import header, step, write_rank
from tests.unit.cli.commands import ddlprof
from tests.unit.live.receiver import receiving
from tests.unit.live.runs import GrowingRun


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def locked(path: Path) -> None:
    path.chmod(0)


LOCKED = pytest.param(locked, marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything"))
WAYS = [fifo, folder, loop, LOCKED]


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    """Two ranks that have ended."""
    run = GrowingRun(tmp_path / "run", ranks=2).begin()
    run.train(20)
    run.end()
    return run


def look(path: Path) -> Snapshot:
    return Observer(RunFollower(path)).look(time.time_ns())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", ["text", "steps"])
def test_a_file_that_cannot_be_read_holds_nothing_up(of: str, way: Callable[[Path], None], run: GrowingRun) -> None:
    path = run.text(1) if of == "text" else run.steps(1)
    way(path)
    snapshot = look(run.directory)
    assert snapshot.read_share == 1
    assert [(rank.rank, rank.steps) for rank in snapshot.ranks] == [(0, 20), (1, 0)][: 1 + (of == "steps")]
    (note,) = snapshot.notes
    assert note.startswith(f"attempt-0/{path.name}: cannot be read: ")
    assert note.count("cannot be read") == 1
    assert words.line(snapshot).endswith("; 1 file cannot be read")
    assert last_word(snapshot, "RUN") == "the run has ended after 20 steps; next: ddlprof report RUN"


@pytest.mark.parametrize("of", ["text", "steps"])
def test_once_ends_and_sends_although_a_file_cannot_be_read(
    of: str, run: GrowingRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(run.text(1) if of == "text" else run.steps(1))
    with receiving() as receiver:
        assert ddlprof(monkeypatch, "watch", str(run.directory), "--once", "--otlp", receiver.url) == 0
    assert receiver.requests[-1].values["ddlprof.steps", "rank=0"] == 20
    assert capsys.readouterr().out.startswith("ddlprof step 20")


def test_a_file_that_can_be_read_again_is(run: GrowingRun, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    shutil.copy(run.steps(1), hidden)
    folder(run.steps(1))
    observer = Observer(RunFollower(run.directory))
    assert observer.look(time.time_ns()).ranks[1].steps == 0
    run.steps(1).rmdir()
    hidden.rename(run.steps(1))
    snapshot = observer.look(time.time_ns())
    assert (snapshot.ranks[1].steps, snapshot.notes, snapshot.unreadable) == (20, [], 0)


def test_what_can_be_read_of_many_ranks_is_read_within_a_few_looks(tmp_path: Path) -> None:
    write_job(tmp_path / "run", ranks=1024, steps=3, nodes=128)
    follower = RunFollower(tmp_path / "run")
    follower.advance()
    assert (follower.behind_bytes, len(follower.ranks_by_attempt[0])) == (0, 1024)
    assert {rank.sums.steps for rank in follower.ranks_by_attempt[0]} == {3}


def test_what_is_no_rank_is_not_read_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GrowingRun(tmp_path)
    path = tmp_path / "attempt-0" / "rank-0.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"garbage\n" * 100_000)
    monkeypatch.setattr(module, "_READ_AT_ONCE_BYTES", 100_000)
    monkeypatch.setattr("ddlprof.live.growing.CHUNK_BYTES", 10_000)
    pieces: list[int] = []
    whole = module._Reader.piece

    def piece(self: Any, *arguments: Any) -> bytes:
        pieces.append(len(found := whole(self, *arguments)))
        return found

    monkeypatch.setattr(module._Reader, "piece", piece)
    follower = RunFollower(tmp_path)
    follower.advance()
    assert 0 < sum(pieces) < 200_000
    assert follower.behind_bytes == 0


def test_once_analyses_once(run: GrowingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_AT_ONCE_BYTES", 100)
    monkeypatch.setattr("ddlprof.live.growing.CHUNK_BYTES", 1000)
    analysed: list[int] = []

    def counted(data: RunData, phase: int) -> list[Attempt]:
        analysed.append(len(data.ranks))
        return analyse(data, phase)

    monkeypatch.setattr("ddlprof.live.snapshot.analyse", counted)
    assert ddlprof(monkeypatch, "watch", str(run.directory), "--once") == 0
    assert analysed == [2]


def test_a_run_of_an_older_version_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rank(tmp_path, header(), [step(0)], lines=[codec.encode_note("h2d", "why")])
    path.write_text(path.read_text().replace('"schema":3', '"schema":2'))
    for command in (["report"], ["watch"], ["watch", "--once"]):
        assert ddlprof(monkeypatch, *command, str(tmp_path)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "rank-0.jsonl: written by an older ddlprof (schema 2): run the script again\n" in err
