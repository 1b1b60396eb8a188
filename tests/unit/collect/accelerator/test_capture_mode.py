"""The capture mode of a thread is set through the library that torch has loaded; none is loaded for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ddlprof.collect.accelerator.cuda import CaptureMode


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
