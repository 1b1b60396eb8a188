"""What is known of a run at one moment, and what is said of it."""

from __future__ import annotations

import os
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.live import words
from ddlprof.live.follower import RunFollower
from ddlprof.live.loop import GRACE_S, SILENT_END_S, last_word
from ddlprof.live.snapshot import GONE, SILENT, TRAINS, Observer, RankView, Snapshot
from ddlprof.model.records import Flag
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.golden.runs import MS, NOW_UNIX_NS, step
from tests.unit.live.runs import DIED_PID, GrowingRun, as_step

TWO_RANKS = Path(__file__).parents[2] / "golden/two-ranks"
HERE: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}


def look(directory: Path, **kwargs: Any) -> Snapshot:
    return Observer(RunFollower(directory), **kwargs).look(time.time_ns())


def test_the_verdict_is_that_of_the_report() -> None:
    """Of a short run, all of which is recent."""
    found = Observer(RunFollower(TWO_RANKS)).look(NOW_UNIX_NS)
    data = load_run(TWO_RANKS)
    report = build_report(data, analyse(data), NOW_UNIX_NS)
    assert found.verdict is not None
    assert report.verdict is not None
    assert report.late_rank is not None
    assert found.times_s == {name: time.mean_s for name, time in report.times.items()}
    assert found.verdict == report.verdict
    assert words.verdict(found) == "mostly computing; the largest avoidable stall is data, 16 %"
    assert (found.late_rank, found.late_cause) == (report.late_rank.rank, report.late_rank.cause)
    assert found.steps == report.steps
    assert [rank.state for rank in found.ranks] == ["exception", SILENT]


def test_a_training_that_waits_for_processors_says_so(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, **HERE).begin()
    for _ in range(4):
        run.train(10, queued_share=0.5, compute_ms=9.8, data_ms=0.1, other_ms=0.1)
    found = look(tmp_path)
    assert words.verdict(found) == "COMPUTE-BOUND (98 %, on a shared machine)"
    assert found.verdict is not None
    assert found.verdict.next.startswith("end the other work on the machine")
    late = replace(found, late_rank=3, late_cause="compute", late_queued_share=0.5)
    assert words.late(late) == "rank 3 arrives last (waits for a processor)"


def test_progress_grows_and_ranks_may_be_late(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, ranks=2, **HERE).begin(0)
    observer = Observer(RunFollower(tmp_path), total_steps=100)
    assert not observer.look(time.time_ns()).started
    run.train(20)
    found = observer.look(time.time_ns())
    assert (found.steps, found.world_size, len(found.ranks)) == (20, 2, 1)
    run.begin(1)
    run.train(20)
    found = observer.look(time.time_ns())
    assert [rank.steps for rank in found.ranks] == [40, 40]
    assert found.steps_per_s == pytest.approx(100)
    assert found.samples_per_s == pytest.approx(2 * 32 * 100)
    assert found.remaining_s == pytest.approx(0.6)
    assert [rank.state for rank in found.ranks] == [TRAINS, TRAINS]
    assert [rank.memory_bytes for rank in found.ranks] == [100 << 20, 101 << 20]
    assert {"step 40 of 100", "100 steps/s", "6,400 samples/s"} <= set(words.progress(found).split(", "))
    assert words.breakdown(found) == "10.0 ms = compute 80 % + data 10 % + h2d 0 % + comm 0 % + other 10 %".replace(
        "h2d 0 % + comm 0 % + ", ""
    )


def test_nothing_is_analysed_again_while_nothing_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = GrowingRun(tmp_path, **HERE).begin()
    run.train(20)
    observer = Observer(RunFollower(tmp_path))
    observer.look(time.time_ns())
    monkeypatch.setattr("ddlprof.live.snapshot.analyse", lambda data, phase: pytest.fail("analysed again"))
    observer.look(time.time_ns())
    run.train(1)
    with pytest.raises(pytest.fail.Exception):
        observer.look(time.time_ns())


def test_the_first_epoch_is_as_long_as_the_data_set(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, **HERE).begin()
    for number in range(70):
        run.writers[0].step(as_step(step(number, flags=int(Flag.EPOCH_START) if number == 0 else 0)))
        if number == 20:
            run.writers[0].flush()
            epoch = look(tmp_path).epoch
            assert epoch is not None
            assert epoch.share == pytest.approx(21 * 32 / 1797)
    run.writers[0].flush()
    epoch = look(tmp_path).epoch  # longer than the data set: each rank goes through all of it, or it is no data set
    assert epoch is not None
    assert (epoch.number, epoch.share) == (1, None)


@pytest.mark.parametrize(
    ("header", "age_s", "state"),
    [
        (HERE, 0.0, TRAINS),
        (HERE, 1000.0, SILENT),
        ({"host": socket.gethostname(), "pid": DIED_PID}, 10.0, GONE),
        ({"host": socket.gethostname(), "pid": DIED_PID}, 1.0, TRAINS),
        ({"host": "elsewhere", "pid": DIED_PID}, 10.0, TRAINS),
        ({"host": "elsewhere", "pid": DIED_PID}, 1000.0, SILENT),
    ],
)
def test_the_state_of_a_rank_that_did_not_say_how_it_ended(
    header: dict[str, Any], age_s: float, state: str, tmp_path: Path
) -> None:
    run = GrowingRun(tmp_path, **header).begin()
    run.train(20)
    now = run.heads[0].origin_unix_ns + 200 * MS + round(age_s * 1e9)
    (rank,) = Observer(RunFollower(tmp_path)).look(now).ranks
    assert rank.state == state
    assert rank.age_s == pytest.approx(age_s, abs=0.01)


def view(number: int, state: str, age_s: float = 0.0) -> RankView:
    return RankView(number, 0, "h", state, 10, 9, {}, age_s, None, {}, None, {})


@pytest.mark.parametrize(
    ("states", "age_s", "word"),
    [
        (["ok", "ok"], 0.0, "the run has ended after 10 steps; next: ddlprof report RUN"),
        (["ok", TRAINS], 0.0, ""),
        (["ok", "exception"], 1.0, ""),
        (["ok", "exception"], GRACE_S + 1, "rank 0 ended, rank 1 ended: exception"),
        ([GONE, GONE], GRACE_S + 1, "was killed after 10 steps (rank 0, 1 is gone"),
        ([SILENT, GONE], GRACE_S + 1, ""),
        ([SILENT, SILENT], SILENT_END_S + 1, "nothing was written for 5 min"),
        ([SILENT, TRAINS], SILENT_END_S + 1, ""),
        ([], 0.0, ""),
    ],
)
def test_the_last_word(states: list[str], age_s: float, word: str) -> None:
    ranks = [view(number, state, age_s) for number, state in enumerate(states)]
    found = last_word(Snapshot("train", steps=10, ranks=ranks), "RUN")
    assert word in found
    assert bool(word) == bool(found)


def test_not_before_all_is_read() -> None:
    assert last_word(Snapshot("train", steps=10, ranks=[view(0, "ok")], read_share=0.5), "RUN") == ""


def test_files_of_two_jobs_are_refused_and_those_of_another_left_out(tmp_path: Path) -> None:
    shutil.copytree(TWO_RANKS, tmp_path / "run")
    foreign = tmp_path / "run/attempt-0/rank-2.jsonl"
    foreign.write_bytes((tmp_path / "run/attempt-0/rank-1.jsonl").read_bytes())
    found = look(tmp_path / "run")
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert any("belongs to rank 1" in note for note in found.notes)
    other = GrowingRun(tmp_path / "run", attempt=3, **HERE)
    other.writers[0].header = replace(other.heads[0], job_id="another")
    other.begin()
    other.train(3)
    with pytest.raises(UserError, match="two jobs"):
        look(tmp_path / "run")


def test_a_folder_of_several_runs_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run = GrowingRun(tmp_path / name, **HERE).begin()
        run.train(3)
    look(tmp_path)  # parts of one job
    path = tmp_path / "a/manifest.json"
    path.write_text(path.read_text().replace('"job_id": "job"', '"job_id": "another"'))
    with pytest.raises(UserError, match=r"holds several runs: name one, as in .*/b$"):
        look(tmp_path)


def test_what_cannot_be_read_is_named_and_tried_again(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, **HERE).begin()
    run.train(20)
    hidden = tmp_path / "elsewhere"
    run.text().rename(hidden)
    run.text().mkdir()
    observer = Observer(RunFollower(tmp_path))
    assert not observer.look(time.time_ns()).ranks
    run.text().rmdir()
    hidden.rename(run.text())
    assert observer.look(time.time_ns()).steps == 20
