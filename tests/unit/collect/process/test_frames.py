"""Reading the stack of another thread leaves that thread as it is: nothing of it dies elsewhere, or later."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from ddlprof.collect.process.frames import positions, stack_of_frame, stack_of_thread
from ddlprof.collect.process.stacks import StackSampler

_SAMPLED_S = 0.3


class Bound:
    """Notes the thread that it dies in."""

    def __init__(self, died_in: list[int]) -> None:
        self.died_in = died_in

    def __del__(self) -> None:
        self.died_in.append(threading.get_ident())


@pytest.fixture(params=[None, 1e-6], ids=["usual-switches", "many-switches"])
def switches(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads take turns as they do by default, and nearly as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(request.param or usual)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def listened_collections() -> Iterator[None]:
    """A collection of garbage at every chance, with a listener that lets other threads run in this one's."""
    sampling = threading.get_ident()

    def listen(*_: object) -> None:
        if threading.get_ident() == sampling:
            time.sleep(1e-5)

    usual = gc.get_threshold()
    gc.callbacks.append(listen)
    gc.set_threshold(1)
    yield
    gc.set_threshold(*usual)
    gc.callbacks.remove(listen)


def sampled(work: Callable[[], object]) -> int:
    """Samples the stack of a thread that repeats `work` as fast as can be; how often it was seen."""
    begun, enough = threading.Event(), threading.Event()

    def repeat() -> None:
        begun.set()
        while not enough.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    begun.wait()
    sampler = StackSampler()
    end = time.perf_counter() + _SAMPLED_S
    try:
        while time.perf_counter() < end:
            sampler.sample(thread.ident, [], 0)
    finally:
        enough.set()
        thread.join()
    return sum(sampler.of_step(1, 0).other.values())


def deaths_elsewhere() -> tuple[int, int]:
    died_in: list[int] = []
    threads: set[int] = set()

    def inner() -> None:
        bound = Bound(died_in)
        threads.add(threading.get_ident())
        sum(range(50))
        del bound

    def work() -> None:
        bound = Bound(died_in)
        deep(20, inner)
        assert bound

    assert sampled(work)
    return sum(ident not in threads for ident in died_in), len(died_in)


def test_local_variables_die_in_their_own_thread(switches: None) -> None:
    elsewhere, deaths = deaths_elsewhere()
    assert deaths > 100
    assert elsewhere == 0


def test_garbage_collections_do_not_come_between(switches: None, listened_collections: None) -> None:
    elsewhere, deaths = deaths_elsewhere()
    assert deaths
    assert elsewhere == 0


def test_gradients_stay_right_while_tensors_are_shown(switches: None) -> None:
    """`repr` of a tensor holds a guard that belongs to its thread."""
    wrong: list[list[float]] = []
    x = torch.ones(3)

    def work() -> None:
        repr(x)
        gradient = torch.func.grad(lambda x: (x * 2).sum())(x).tolist()
        if gradient != [2, 2, 2]:
            wrong.append(gradient)

    assert sampled(work)
    assert not wrong


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_are_left_as_the_user_has_them(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert stack_of_thread(threading.get_ident())
        assert gc.isenabled() is enabled
        with monkeypatch.context() as patched:
            patched.setattr("ddlprof.collect.process.frames._GLOBALS", len)  # fails on a frame
            with pytest.raises(TypeError):
                stack_of_thread(threading.get_ident())
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if usual else gc.disable)()


HOOKED = """
import sys, threading
from ddlprof.collect.process.frames import stack_of_thread
seen = []
sys.addaudithook(lambda event, arguments: seen.append(event))
seen.clear()
levels = stack_of_thread(threading.get_ident())
print(len(levels), levels[-1].code.co_name, seen)
"""


def test_hooks_that_are_written_in_python_run_before_there_is_a_frame() -> None:
    done = subprocess.run([sys.executable, "-c", HOOKED], capture_output=True, text=True, check=True)
    assert done.stdout.split(" ", 2)[1:] == ["<module>", "['sys._current_frames']\n"]


def deep(levels: int, act: Callable[[], None]) -> None:
    if levels:
        deep(levels - 1, act)
    else:
        act()


@pytest.mark.parametrize("levels", [0, 300])
def test_a_stack_is_what_its_frames_tell(levels: int) -> None:
    begun, release = threading.Event(), threading.Event()

    def wäit() -> None:
        begun.set()
        while not release.is_set():
            time.sleep(0.001)

    thread = threading.Thread(target=deep, args=(levels, wäit), daemon=True)
    thread.start()
    begun.wait()
    frame = sys._current_frames()[thread.ident or 0]
    stack = stack_of_thread(thread.ident or 0)
    outer = [each for each in stack if each.module == __name__ and each.code.co_name == "deep"]
    assert len(outer) == levels + 1
    assert next(each.code.co_name for each in stack if each.module == __name__) == "wäit"
    while frame is not None and frame.f_code is not deep.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    assert [(e.code, e.instruction) for e in reversed(stack_of_frame(frame))] == positions(frame)
    for each in outer:
        assert (each.code, each.instruction, each.line()) == (frame.f_code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    release.set()
    thread.join()


def test_nothing_of_a_read_stack_is_kept() -> None:
    def own() -> int:
        frame = sys._getframe()
        before = sys.getrefcount(frame)
        levels = stack_of_thread(threading.get_ident())
        assert frame.f_code in [level.code for level in levels]
        return sys.getrefcount(frame) - before

    assert own() == 0


def test_no_thread_and_no_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stack_of_thread(-5) == []
    assert stack_of_frame(None) == []
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert stack_of_thread(threading.get_ident()) == []
