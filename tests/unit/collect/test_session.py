"""What a session leaves behind when there is little to record, or nowhere to record it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddlprof.collect.accelerator import windows
from ddlprof.collect.accelerator.protocol import DeviceProfiler
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.session import Session
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.model.manifest import Manifest
from ddlprof.model.options import Options
from ddlprof.model.records import End, Note
from ddlprof.writing.writer import rank_files
from tests.records import records_in
from tests.unit.collect.lagging_device import MS, UNIX, LaggingDevice, Profiler, train
from tests.unit.collect.toy_accelerator import Toy


def session(directory: Path, quiet: bool = False) -> Session:
    return Session(Options(out=str(directory), quiet=quiet), "train", ["train.py", "--token", "secret"])


def context(session: Session, profiler: DeviceProfiler | None = None) -> HookContext:
    """Of hooks on an accelerator."""
    profiler = profiler or Profiler(LaggingDevice(0))
    return hook_context(torch, session.recorder, Toy(torch, profiler=profiler))


def update(session: Session, times: int = 1) -> None:
    for _ in range(times):
        session.recorder.emit(Kind.OPTIMIZER_BEGIN)
        session.recorder.emit(Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 1))


def records(directory: Path, rank: int = 0) -> list[tuple[str, object]]:
    text, _ = rank_files(directory, 0, rank)
    return records_in(text)


def test_steps_are_awaited_where_measuring_ends_with_one_or_somebody_asks_for_them(tmp_path: Path) -> None:
    asked = session(tmp_path / "asked")
    assert not asked.helper.is_awaited()
    asked.recent.means_s(1)
    assert asked.helper.is_awaited()
    options = Options(out=str(tmp_path / "short"), quiet=True, stop_after=30)
    assert Session(options, "train", ["train.py"]).helper.is_awaited()


def test_what_only_a_training_needs_is_imported_with_torch(tmp_path: Path) -> None:
    late = (
        "hooks.context",
        "inspection",
        "facts.model_inspector",
        "facts.manifest",
        "accelerator.windows",
        "job.agreement",
    )
    program = (
        "import sys; from ddlprof.collect.session import start; from ddlprof.model.options import Options;"
        f"session = start(Options(out={str(tmp_path)!r}, quiet=True), 'train', ['train.py']); session.finish('ok', 0);"
        f"sys.exit(bool({{'ddlprof.collect.' + name for name in {late!r}}} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_a_script_without_torch_leaves_a_whole_run(tmp_path: Path) -> None:
    recording = session(tmp_path)
    recording.finish("exit", 7)
    (end,) = (record for tag, record in records(tmp_path) if tag == "e")
    assert isinstance(end, End)
    assert (end.status, end.exit_code) == ("exit", 7)
    assert Manifest.read(tmp_path).name == "train"


def test_the_manifest_is_there_from_the_start_without_secrets(tmp_path: Path) -> None:
    session(tmp_path)
    manifest = Manifest.read(tmp_path)
    assert manifest.argv[0] == "train.py"
    assert "secret" not in (tmp_path / "manifest.json").read_text()
    assert manifest.world_size == 1


def test_it_says_that_no_optimizer_has_the_wanted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an evaluation came last, whose forwards are all that is still known."""
    monkeypatch.setattr(Session, "_only_forwards", lambda session: True)
    recording = Session(Options(out=str(tmp_path), step_optimizer="Adam"), "train", [])
    update(recording, 3)
    recording.finish("ok", 0)
    why = "--step-optimizer Adam is none of those that stepped: SGD (parameters: 1)"
    assert ("n", Note("optimizer", why)) in records(tmp_path)
    assert not [each for _, each in records(tmp_path) if isinstance(each, Note) and each.source == "steps"]


def test_hooks_that_cannot_be_installed_are_no_error_of_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise RuntimeError("can't start new thread")

    taken_back: list[bool] = []

    def no_longer_there() -> None:
        raise KeyError

    recording = session(tmp_path)
    monkeypatch.setattr(recording.helper, "start", fails)
    monkeypatch.setattr(recording, "install", lambda: None)
    for uninstall in (lambda: taken_back.append(True), no_longer_there):
        recording.hooking.attempt("a hook", lambda uninstall=uninstall: uninstall)  # type: ignore[misc]
    recording.begin()
    recording.finish("ok", 0)
    assert taken_back == [True]
    assert ("n", Note("hooks", "nothing is measured: RuntimeError: can't start new thread")) in records(tmp_path)


def test_a_recorder_that_stopped_says_why(tmp_path: Path) -> None:
    recording = session(tmp_path)
    update(recording, 3)
    recording.recorder.failure = "RuntimeError: device lost"
    recording.finish("ok", 0)
    assert ("n", Note("recorder", "stopped recording: RuntimeError: device lost")) in records(tmp_path)


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    recording = session(tmp_path)
    recording.pid = os.getpid() + 1  # as it is in the child
    recording.forked()
    update(recording)
    recording.finish("ok", 0)
    assert not rank_files(tmp_path, 0, 0)[0].exists()


def test_a_directory_that_went_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says so, and the training goes on."""
    recording = session(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").touch()
    update(recording, 3)
    recording.finish("ok", 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ddlprof: ")
    assert line.endswith(f"process {os.getpid()} is not recorded; the training goes on")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_rank_that_nobody_told_the_directory(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    recording = Session(Options(quiet=quiet), "train", [])
    update(recording, 3)
    recording.finish("ok", 0)
    assert list(tmp_path.iterdir()) == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (0 if quiet else 1)


def test_ranks_of_one_job_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        recording = session(tmp_path)
        update(recording, 3)
        recording.finish("ok", 0)
    assert [len([1 for tag, _ in records(tmp_path, rank) if tag == "s"]) for rank in (0, 1)] == [3, 3]


def test_hooks_that_cannot_be_installed_are_noted(tmp_path: Path) -> None:
    recording = session(tmp_path)

    def install() -> None:
        raise AttributeError("another torch")

    recording.hooking.attempt("comm", install)  # type: ignore[arg-type]
    update(recording, 2)
    recording.finish("ok", 0)
    (note,) = (record for tag, record in records(tmp_path) if tag == "n")
    assert note == Note("comm", "not measured: AttributeError: another torch")
    rows = [record for tag, record in records(tmp_path) if tag == "s"]
    assert [getattr(row, "comm_ns", 0) for row in rows] == [None, None]


def test_the_scripts_import_of_torch_succeeds_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = session(tmp_path)

    def no_more(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    installed: list[str] = []

    def undo() -> None:
        installed.append("undone")

    monkeypatch.setattr(recording, "install", lambda: recording.hooking.attempt("hook", lambda: undo))
    monkeypatch.setattr("threading.Thread.start", no_more)
    recording.begin()
    assert installed == ["undone"]
    assert not recording.recorder.active
    recording.finish("ok", 0)
    assert ("n", Note("hooks", "nothing is measured: RuntimeError: can't start new thread")) in records(tmp_path)


def test_what_fails_after_an_update_is_not_raised_in_the_training(tmp_path: Path) -> None:
    recording = session(tmp_path)

    def fail() -> None:
        raise RuntimeError("no such patch")

    recording.later(fail)
    update(recording, 3)
    recording.finish("ok", 0)
    assert ("n", Note("update", "RuntimeError: no such patch")) in records(tmp_path)
    assert len([row for tag, row in records(tmp_path) if tag == "s"]) == 3


def test_a_script_without_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = session(tmp_path)
    update(recording, 3)
    monkeypatch.setattr("sys.stderr", None)
    recording.writer.failure = "No space left on device"
    recording.finish("ok", 0)
    assert recording.progress.warned


def test_a_device_is_looked_at_closer_only_where_that_was_asked_for(tmp_path: Path) -> None:
    plain = session(tmp_path / "plain")
    plain.device.look_closer(context(plain))
    assert plain.helper.windows is None
    assert plain.helper.flight_recorder is None
    options = Options(out=str(tmp_path / "closer"), profiler_windows=2, time_collectives=True)
    closer = Session(options, "train", ["train.py"])
    closer.device.look_closer(context(closer))
    assert closer.helper.windows is not None
    update(closer)
    closer.finish("ok", 0)
    why = "not timed: this torch was built without NCCL's Flight Recorder"
    if not torch.distributed.is_nccl_available():
        assert ("n", Note("collectives", why)) in records(tmp_path / "closer")


@pytest.mark.parametrize("asked", [False, True])
def test_torch_is_asked_for_timing_before_there_is_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_TIMING")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "3000")
    recording = Session(Options(out=str(tmp_path), time_collectives=asked), "train", ["train.py"])
    monkeypatch.setattr(recording.hooking, "install", lambda hooks, context: None)
    recording.begin()
    recording.finish("ok", 0)
    assert os.environ.get("TORCH_NCCL_ENABLE_TIMING") == ("1" if asked else None)
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "3000"


class Looked:
    """A session on a simulated device, with windows."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = LaggingDevice(lead_ns=10 * MS)
        self.profiler = Profiler(self.device)
        clock = SimpleNamespace(time_ns=lambda: UNIX, perf_counter_ns=lambda: 0, perf_counter=lambda: 0.0)
        monkeypatch.setattr(windows, "time", clock)
        self.session = Session(Options(out=str(directory), profiler_windows=1), "train", ["train.py"])
        recorder = self.session.recorder
        recorder.clock = self.device.now
        self.session.device.look_closer(context(self.session, self.profiler))
        assert self.session.helper.windows is not None
        self.session.helper.windows._record = self.device.mark

    def train(self, steps: int) -> None:
        train(self.device, self.session.recorder, self.session.helper, steps, drain=False)


@pytest.mark.parametrize("how", ["finish", "exception", "pause"])
def test_no_window_outlives_the_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    looked = Looked(tmp_path, monkeypatch)
    looked.train(52)
    assert looked.profiler.on is not None
    if how == "pause":
        looked.session.pause()
    else:
        looked.session.finish(how, 0)
    assert looked.profiler.on is None
    looked.session.finish("ok", 0)
    assert not [record for tag, record in records(tmp_path) if tag == "w"]


def test_a_window_that_cannot_be_read_ends_no_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(tmp_path, monkeypatch)
    looked.profiler.failing = "activities"
    looked.session.helper.start()
    looked.train(80)
    looked.session.finish("ok", 0)
    found = records(tmp_path)
    assert len([tag for tag, _ in found if tag == "s"]) == 80
    assert ("n", Note("windows", "ended after 0 of 1: RuntimeError: activities failed")) in found
