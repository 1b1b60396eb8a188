"""`ddlprof watch`, in this process: what it says, where, and when it ends."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.unit.cli.commands import ddlprof
from tests.unit.live.receiver import receiving
from tests.unit.live.runs import DIED_PID, GrowingRun

MINUTE_NS = 60 * 10**9


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GrowingRun:
    """A run of ten minutes ago, on this machine, whose process is gone."""
    monkeypatch.chdir(tmp_path)
    now = time.time_ns()
    monkeypatch.setattr("tests.unit.live.runs.time.time_ns", lambda: now - 10 * MINUTE_NS)
    run = GrowingRun(tmp_path / "run", host=socket.gethostname(), pid=DIED_PID).begin()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    run.train(20)
    return run


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("ok", "the run has ended after 20 steps; next: ddlprof report run"),
        ("exception", "the run has ended after 20 steps: rank 0 ended: exception; next: ddlprof report run"),
        ("", "the run was killed after 20 steps (rank 0 is gone without a last word); next: ddlprof report run"),
    ],
)
def test_a_run_that_is_over_says_so_at_once(
    status: str, word: str, old: GrowingRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if status:
        old.end(status)
    assert ddlprof(monkeypatch, "watch", "run") == 0
    out, err = capsys.readouterr()
    assert out == ""
    first, last = err.splitlines()
    assert first.startswith("ddlprof ")
    assert "step 20" in first
    assert last == f"ddlprof: {word}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such run directory; make one with: ddlprof run SCRIPT; --wait 10m waits for it"),
        (["nowhere", "--wait", "0.2s"], "nowhere: no such run directory"),
        (["nowhere", "--wait", "soon"], "--wait takes a time"),
        (["file"], "file: is a file, not a run directory"),
        (["nowhere", "--interval", "0"], "--interval"),
        (["run", "--otlp", "localhost:4318"], "--otlp takes the URL of a receiver, such as http://localhost:4318"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    GrowingRun(tmp_path / "run").begin()
    assert ddlprof(monkeypatch, "watch", *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]
    assert len(err.splitlines()) == 1 + ("0.2s" in words)


def test_it_waits_for_a_run_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin() -> None:
        time.sleep(0.3)
        run = GrowingRun(tmp_path / "run").begin()
        run.train(20)
        run.end()

    thread = threading.Thread(target=begin)
    thread.start()
    assert ddlprof(monkeypatch, "watch", str(tmp_path / "run"), "--wait", "1m", "--interval", "0.1") == 0
    thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("ddlprof: waiting for ")
    assert "has ended after 20 steps" in lines[-1]


def test_a_url_is_followed_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = GrowingRun(tmp_path / "run").begin()
    run.train(20)
    run.end()
    assert ddlprof(monkeypatch, "watch", f"file://{tmp_path}/run") == 0
    assert "has ended after 20 steps; next: ddlprof report file://" in capsys.readouterr().err


def test_metrics_are_sent_while_it_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    run = GrowingRun(tmp_path / "run", ranks=2).begin()
    run.train(20)
    with receiving() as receiver:

        def train() -> None:
            receiver.wait_for(1)
            run.train(20)
            receiver.wait_for(len(receiver.requests) + 2)
            run.end()

        thread = threading.Thread(target=train)
        thread.start()
        assert ddlprof(monkeypatch, "watch", str(tmp_path / "run"), "--interval", "0.1", "--otlp", receiver.url) == 0
        thread.join()
    steps = [each.values["ddlprof.steps", "rank=1"] for each in receiver.requests]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (20, 40)
    assert "has ended after 40 steps" in capsys.readouterr().err


def test_a_receiver_that_is_away_does_not_stop_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2.5")
    run = GrowingRun(tmp_path / "run").begin()
    run.train(20)

    def train() -> None:
        for _ in range(4):
            time.sleep(0.7)
            run.train(20)
        run.end()

    thread = threading.Thread(target=train)
    thread.start()
    url = f"http://user:secret@127.0.0.1:{_free_port()}"
    assert ddlprof(monkeypatch, "watch", str(tmp_path / "run"), "--interval", "0.1", "--otlp", url) == 0
    thread.join()
    lines = capsys.readouterr().err.splitlines()
    (problem,) = [line for line in lines if "metrics" in line]
    assert problem.startswith("ddlprof: metrics do not arrive at http://***@127.0.0.1:")
    assert problem.endswith("Connection refused")
    assert "step 100," in lines[-2]
    assert "has ended after 100 steps" in lines[-1]


def test_once_sends_once(old: GrowingRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    old.end()
    with receiving() as receiver:
        assert ddlprof(monkeypatch, "watch", "run", "--once", "--otlp", receiver.url) == 0
    assert receiver.requests[-1].values["ddlprof.steps", "rank=0"] == 20
    assert capsys.readouterr().out.startswith("ddlprof step 20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2.5")
    assert ddlprof(monkeypatch, "watch", "run", "--once", "--otlp", f"http://127.0.0.1:{_free_port()}") == 2
    out, err = capsys.readouterr()
    assert out.startswith("ddlprof step 20")
    assert re.fullmatch(r"ddlprof: metrics do not arrive at \S+: Connection refused\n", err)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
