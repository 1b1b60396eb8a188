"""What looks at torch's switches see."""

from __future__ import annotations

import cProfile
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ddlprof.collect.facts.switches import Switches


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)


def test_nobody_has_looked() -> None:
    switches = Switches()
    assert switches.anomaly_share is None
    assert switches.deterministic is None


def test_anomaly_mode_is_a_share_of_the_looks() -> None:
    switches = Switches()
    switches.look()
    torch.autograd.set_detect_anomaly(True)
    switches.look()
    assert switches.anomaly_share == 0.5


def test_the_last_look_tells_whether_algorithms_are_deterministic() -> None:
    switches = Switches()
    torch.use_deterministic_algorithms(True)
    switches.look()
    assert switches.deterministic is True
    torch.use_deterministic_algorithms(False)
    switches.look()
    assert switches.deterministic is False


def test_a_debugger_or_a_profiler_of_python_is_seen() -> None:
    switches, before = Switches(), (sys.gettrace(), sys.getprofile())
    assert switches.interpreter_hook is None
    sys.setprofile(None)
    sys.settrace(None)
    switches.look_at_hooks()
    nothing = switches.interpreter_hook
    sys.settrace(lambda *_: None)
    for _ in range(2):
        switches.look_at_hooks()
    sys.settrace(None)
    traced, profiler, watched = switches.interpreter_hook, cProfile.Profile(), Switches()
    profiler.enable()
    watched.look_at_hooks()
    profiler.disable()
    sys.settrace(before[0])
    sys.setprofile(before[1])
    assert nothing == ""
    assert traced == "line: tests"
    assert watched.interpreter_hook == "call: cProfile"


def test_what_is_meant_for_debugging_is_seen() -> None:
    switches, traced = Switches(), Switches()
    assert switches.debug_modes is None
    switches.look_at_hooks()
    assert switches.debug_modes == ""
    with torch.autograd.profiler.profile():
        for _ in range(2):
            switches.look_at_hooks()
    tracemalloc.start()
    traced.look_at_hooks()
    tracemalloc.stop()
    assert switches.debug_modes == "torch.profiler"
    assert traced.debug_modes == "tracemalloc"
    switches.look_at_hooks()
    assert switches.debug_modes == "", "the first steps, at which most looks are, are no habit"
    with torch.autograd.profiler.emit_nvtx(enabled=False):
        traced.look_at_hooks()
    assert traced.debug_modes == ""


def test_launches_that_block_are_seen_where_there_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    for initialised in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda it=initialised: it)
        switches = Switches()
        switches.look_at_hooks()
        assert switches.debug_modes == "CUDA_LAUNCH_BLOCKING" * initialised


@pytest.mark.parametrize(("ranks", "level", "checked"), [(2, "DETAIL", True), (1, "DETAIL", False), (2, "INFO", False)])
def test_checks_of_collectives_are_seen_where_there_are_ranks(
    monkeypatch: pytest.MonkeyPatch, ranks: int, level: str, checked: bool
) -> None:
    levels: Any = torch.distributed.DebugLevel  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    monkeypatch.setattr(torch.distributed, "get_debug_level", lambda: getattr(levels, level))
    switches = Switches()
    switches.look_at_hooks()
    assert switches.debug_modes == "TORCH_DISTRIBUTED_DEBUG" * checked
