"""The age of this process."""

from __future__ import annotations

import builtins
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddlprof.collect.process.clocks import age_ns

needs_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells it")


@needs_linux
def test_it_is_the_time_since_the_process_began() -> None:
    code = "import time; time.sleep(0.3)\nfrom ddlprof.collect.process.clocks import age_ns; print(age_ns())"
    begin = time.monotonic_ns()
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 300_000_000 <= int(out) <= time.monotonic_ns() - begin + 20_000_000


@needs_linux
def test_it_grows_as_the_clock_does() -> None:
    first = age_ns()
    time.sleep(0.05)
    second = age_ns()
    assert first is not None
    assert second is not None
    assert second - first >= 50_000_000


@pytest.mark.parametrize("text", [b"", b"1 (a) b) R 1", b"1 (python) R" + b" 0" * 49])
def test_it_is_not_known_where_the_kernel_does_not_tell(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stat").write_bytes(text)
    original = builtins.open
    monkeypatch.setattr(builtins, "open", lambda name, *args: original(tmp_path / "stat", *args))
    assert age_ns() is None


def test_it_is_not_known_without_such_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", missing)
    assert age_ns() is None
