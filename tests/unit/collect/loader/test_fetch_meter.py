"""One fetch, measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddlprof.collect.loader import fetch_meter
from ddlprof.collect.loader.fetch_meter import Fetch, FetchMeter

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux's schedstat")


def fetch(meter: FetchMeter, file: Path) -> Fetch:
    begin = meter.begin()
    time.sleep(0.02)
    file.read_bytes()
    return meter.fetch(begin, meter.end())


@pytest.mark.parametrize("whole_process", [True, False])
def test_a_fetch(whole_process: bool, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    found = fetch(FetchMeter(whole_process), tmp_path / "data")
    assert found.end - found.begin >= found.blocked >= 0.015e9
    assert found.cpu > 0
    assert found.asked == 100_000  # what the meter reads itself is no part of it


def test_without_counters_the_times_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(whole_process: bool) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(fetch_meter, "IoCounters", refuse)
    (tmp_path / "data").touch()
    found = fetch(FetchMeter(whole_process=True), tmp_path / "data")
    assert found.blocked > 0
    assert (found.asked, found.storage) == (None, None)
