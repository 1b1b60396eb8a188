"""CUDA graph captures keep the helper from asking the device."""

from __future__ import annotations

from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.hooks.graphs import install


def fake_torch(fails: bool = False) -> Any:
    class CUDAGraph:
        def capture_begin(self) -> None:
            if fails:
                raise RuntimeError("no memory")

        def capture_end(self) -> None:
            pass

    return SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=CUDAGraph))


def test_the_device_is_not_free_during_a_capture() -> None:
    torch, free = fake_torch(), Lock()
    uninstall = install(torch, free)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    assert free.locked()
    graph.capture_end()
    assert not free.locked()
    uninstall()
    graph.capture_begin()
    assert not free.locked()


def test_a_capture_that_does_not_begin_frees_the_device() -> None:
    torch, free = fake_torch(fails=True), Lock()
    install(torch, free)
    with pytest.raises(RuntimeError, match="no memory"):
        torch.cuda.CUDAGraph().capture_begin()
    assert not free.locked()


def test_captures_that_overlap_or_never_end_do_not_wait_for_each_other() -> None:
    torch, free = fake_torch(), Lock()
    uninstall = install(torch, free)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    done: list[bool] = []

    def capture() -> None:
        first.capture_begin()
        second.capture_begin()
        first.capture_end()
        done.append(free.locked())
        second.capture_end()

    thread = Thread(target=capture, daemon=True)
    thread.start()
    thread.join(10)
    uninstall()
    assert done == [True]
    assert not free.locked()
