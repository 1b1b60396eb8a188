"""A session whose helper thread fails or does not end: the training ends as it would, and the report knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.collect import helper
from ddlprof.collect.job import unfinished
from ddlprof.model.records import Note
from ddlprof.model.unfinished import Unfinished
from ddlprof.store import load_run
from tests.unit.collect.test_session import records, session, update


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_helper_that_does_not_end_is_left_and_the_report_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    monkeypatch.setattr(helper, "_STUCK_S", 0.05)
    recording, stuck, may_go = session(tmp_path, quiet), threading.Event(), threading.Event()
    recording.helper.start()
    update(recording, 20)
    until(lambda: recording.progress.steps >= 20)

    def poll() -> None:
        stuck.set()
        assert may_go.wait(60)

    recording.helper.poll = poll
    assert stuck.wait(60)
    update(recording, 5)
    recording.finish("exit", 3)
    assert not recording.recorder.active
    (rank,) = load_run(tmp_path).ranks
    assert (rank.status, rank.end and rank.end.exit_code) == ("exit", 3)
    (note,) = [note.message for note in rank.notes if note.source == "helper"]
    assert "at most the first 20 steps are recorded, of 25 updates" in note
    assert capsys.readouterr().err.count("rank 0: the helper thread did not end") == (not quiet)
    may_go.set()  # the process goes on, as after `ddlprof.profile()`
    recording.helper._thread.join(60)
    assert load_run(tmp_path).ranks[0].step_count == 25


def test_a_word_that_cannot_be_written_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The helper thread may be stuck in a write, and so would be everybody else who writes there."""
    may_go = threading.Event()
    monkeypatch.setattr(unfinished, "_WRITING_S", 0.05)
    monkeypatch.setattr(Unfinished, "write", lambda *_: may_go.wait(60))
    unfinished.leave_word(session(tmp_path).rank_output, Unfinished("ok", 0, 1, "stuck"), quiet=False)
    assert capsys.readouterr().err == "ddlprof: rank 0: stuck; the training is not affected\n"
    may_go.set()


def test_after_an_error_of_the_helper_the_training_thread_removes_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, removed = session(tmp_path), list[int]()
    monkeypatch.setattr(recording.hooking, "uninstall", lambda: removed.append(threading.get_ident()))
    recording.helper.start()
    update(recording, 20)
    until(lambda: recording.progress.steps)

    def fail() -> None:
        raise RuntimeError("ours")

    recording.helper.poll = fail
    recording.helper._thread.join(60)
    assert ("n", Note("helper", "stopped recording: RuntimeError: ours")) in records(tmp_path)
    assert removed == []  # other threads must not
    update(recording, 2)
    assert removed == [threading.get_ident()]
    assert not recording.recorder.active
    monkeypatch.setattr(recording, "install", lambda: pytest.fail("its events would be taken by nobody"))
    recording.resume()
    assert not recording.recorder.active
    assert not recording.recorder.chunks
    recording.finish("ok", 0)
    assert load_run(tmp_path).ranks[0].status == "ok"
