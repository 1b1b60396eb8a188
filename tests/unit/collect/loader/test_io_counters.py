"""What a thread or a process has read, as the kernel counts it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from ddlprof.collect.loader.fetch_meter import IoCounters, ReadBytes

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs Linux's /proc/self/io")

SIZE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(SIZE))
    return path


def asked_by(counters: IoCounters, file: Path, in_a_thread: bool) -> int:
    begin = ReadBytes.of(counters.read())
    if in_a_thread:
        thread = threading.Thread(target=file.read_bytes)
        thread.start()
        thread.join()
    else:
        file.read_bytes()
    return ReadBytes.of(counters.read()).asked - begin.asked


@pytest.mark.parametrize("whole_process", [True, False])
def test_what_the_page_cache_has_is_counted_as_asked_for(whole_process: bool, file: Path) -> None:
    assert SIZE <= asked_by(IoCounters(whole_process), file, in_a_thread=False) < 1.1 * SIZE


@pytest.mark.skipif(sys.platform != "linux", reason="the path is Linux's")
def test_without_counters_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *_: object) -> int:
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        IoCounters(whole_process=True)
