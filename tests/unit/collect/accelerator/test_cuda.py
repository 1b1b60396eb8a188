"""Torch's own profiler, whose device is here the CPU, and the capture mode of a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.collect.accelerator.cuda import OTHER_TOOLS, CaptureMode, Kineto, stays_attached
from ddlprof.collect.accelerator.windows import FIRST_UPDATE, ProfilerWindows
from ddlprof.collect.recorder import Recorder

AUTOGRAD: Any = torch.autograd
CAPTURING = {0: False}


@pytest.fixture(autouse=True)
def no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_TOOLS:
        monkeypatch.delenv(name, raising=False)


class Opened:
    """Windows on this process, and what they noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.profiler = Kineto(torch, "CPU", lambda: CAPTURING[0])
        mark = SimpleNamespace(query=lambda: True)
        self.recorder = Recorder()
        self.windows = ProfilerWindows(
            self.recorder, self.profiler, 3, lambda: mark, lambda source, message: self.notes.append(message)
        )
        self.uninstall = self.windows.install()

    def lost(self) -> list[tuple[int, str]]:
        return [(drop.count, drop.reason) for drop in self.recorder.drops.take()]

    def open(self) -> None:
        self.windows.at_update(FIRST_UPDATE)


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    made.uninstall()


def work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def on() -> bool:
    return bool(AUTOGRAD._profiler_enabled())


def names(profiler: Any) -> set[str]:
    return {event.name for event in profiler.events()}


def test_it_sees_what_the_device_did() -> None:
    profiler = Kineto(torch, "CPU", lambda: CAPTURING[0])
    profiler.start()
    assert on()
    with torch.profiler.record_function("a name of the script"):
        work()
    activities = profiler.activities(profiler.stop())
    assert "a name of the script" not in {a.name for a in activities}
    assert not on()
    product = next(a for a in activities if a.name == "aten::mm")
    assert product.end > product.begin > 10**18


def test_it_reads_in_another_thread() -> None:
    profiler = Kineto(torch, "CPU", lambda: CAPTURING[0])
    profiler.start()
    work()
    result, found = profiler.stop(), []
    thread = threading.Thread(target=lambda: found.append(profiler.activities(result)))
    thread.start()
    thread.join()
    assert any(a.name == "aten::mm" for a in found[0])


def test_the_scripts_profiler_gets_its_whole_trace(opened: Opened) -> None:
    opened.open()
    assert on()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        work()
    assert "aten::mm" in names(theirs)
    assert not on()
    assert opened.lost() == [(1, "the script started a profiler of its own")]


def test_it_is_not_opened_while_the_scripts_profiler_is_on(opened: Opened) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        work()
        opened.open()
        work()
    assert [event.name for event in theirs.events()].count("aten::mm") == 2
    assert opened.lost() == [(1, "the script's own profiler was on")]
    assert opened.profiler.why_not() is None


def test_it_is_not_opened_while_the_scripts_profiler_warms_up(opened: Opened) -> None:
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    kept: list[Any] = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, on_trace_ready=lambda p: kept.append(p)
    ) as theirs:
        assert not on()  # prepared, not started
        opened.open()
        assert not on()
        theirs.step()
        work()
        theirs.step()
    assert "aten::mm" in names(theirs)


@pytest.mark.parametrize(
    "start",
    [
        lambda: torch.autograd.profiler.profile(use_kineto=False),
        lambda: torch.autograd.profiler.profile(),
        lambda: torch.autograd.profiler_legacy.profile(),
    ],
)
def test_older_profilers_of_the_script(opened: Opened, start: Any) -> None:
    opened.open()
    with start() as theirs:
        work()
        assert opened.profiler.why_not() is not None
    assert "aten::mm" in {event.key for event in theirs.key_averages()}
    assert opened.profiler.why_not() is None


def test_who_does_not_ask_takes_the_scripts_trace() -> None:
    """What all this is about: there is one profiler in a process."""
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    theirs.start()
    profiler = Kineto(torch, "CPU", lambda: CAPTURING[0])
    assert profiler.why_not() is not None
    profiler.start()
    work()
    profiler.stop()
    said = ""
    try:
        theirs.stop()
    except RuntimeError as error:  # torch 2.11
        said = str(error)
    assert "not running" in said or "aten::mm" not in names(theirs)


def test_a_profiler_that_another_thread_starts_ends_ours_at_the_next_update(opened: Opened) -> None:
    opened.open()
    thread = threading.Thread(target=opened.windows.make_way)
    thread.start()
    thread.join()
    assert on()
    opened.windows.at_update(FIRST_UPDATE + 1)
    assert not on()


def test_hooks_are_taken_back_and_the_window_with_them(opened: Opened) -> None:
    before = AUTOGRAD.profiler._enable_profiler
    opened.open()
    opened.uninstall()
    assert not on()
    assert AUTOGRAD.profiler._enable_profiler is not before


@pytest.mark.parametrize("name", OTHER_TOOLS)
def test_other_tools_have_the_profiler_to_themselves(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    opened.open()
    assert not on()
    assert name in opened.lost()[0][1]


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*args: Any) -> None:
        raise AssertionError("waits")

    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    monkeypatch.setattr(torch.accelerator, "synchronize", waits, raising=False)
    profiler = Kineto(torch, "CPU", lambda: CAPTURING[0])
    windows = ProfilerWindows(Recorder(), profiler, 1, lambda: SimpleNamespace(query=lambda: True))
    for update in range(FIRST_UPDATE, FIRST_UPDATE + 10):
        windows.at_update(update)
    assert not on()


@pytest.mark.parametrize(
    ("cuda", "version", "variable", "stays"),
    [
        (None, "2.13.0+cpu", None, False),
        ("12.4", "2.13.0+cu124", None, True),
        ("12.6", "2.8.0+cu126", None, True),
        ("12.9", "2.13.0+cu129", None, False),
        ("12.6", "2.8.0+cu126", "1", False),
        ("12.9", "2.13.0+cu129", "0", True),
    ],
)
def test_it_warns_of_a_profiler_that_stays_attached(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, version: str, variable: str | None, stays: bool
) -> None:
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    if variable is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", variable)
    built = SimpleNamespace(version=SimpleNamespace(cuda=cuda), __version__=version)
    assert stays_attached(built) == stays


def test_it_is_not_opened_during_a_capture(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPTURING, 0, True)
    opened.open()
    assert not on()
    assert opened.lost() == [(1, "a graph was being captured")]


class Library:
    """Holds the mode of the only thread that asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.mode = self.failure = 0

    def __call__(self, name: str, mode: int) -> Library:
        self.asked.append(name)
        return self

    def cuThreadExchangeStreamCaptureMode(self, mode: SimpleNamespace) -> int:
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return self.failure

    hipThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr("ctypes.CDLL", library)
    return library


def build(hip: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(version=SimpleNamespace(hip=hip))


@pytest.mark.parametrize(("hip", "name"), [(None, "libcuda.so.1"), ("6.3.42131", "libc10_hip.so")])
def test_a_thread_is_relaxed_only_inside(library: Library, hip: str | None, name: str) -> None:
    mode = CaptureMode(build(hip))
    with mode.relaxed():
        assert library.mode == 2
    assert library.mode == 0
    assert library.asked == [name]


def test_nothing_is_asked_where_the_driver_refuses(library: Library) -> None:
    library.failure = 3
    with pytest.raises(RuntimeError, match="error 3"), CaptureMode(build()).relaxed():
        pytest.fail("was asked")


def test_a_library_that_is_not_loaded_stays_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libother.so").touch()
    monkeypatch.setattr("ddlprof.collect.accelerator.cuda._CUDA", (str(tmp_path / "libother.so"), "exchange"))
    with pytest.raises(RuntimeError, match="asking it might end captures"):
        CaptureMode(build())
