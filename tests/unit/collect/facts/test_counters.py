"""High-water marks of memory, asked and never reset."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.collect.facts import counters
from ddlprof.collect.facts.counters import PeakMemory, Peaks, peak_rss_bytes

CLOCK: Any = SimpleNamespace(stream=SimpleNamespace(device="cuda:1"))


def test_without_a_device_it_is_the_resident_set() -> None:
    memory = PeakMemory()
    read = memory.read()
    assert read == memory.last.process_peak_rss_bytes
    assert 1 << 20 < (read or 0) <= (peak_rss_bytes() or 0) + (1 << 20)
    assert memory.last[1:] == (None, None)


def test_the_resident_sets_mark_does_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[int | None] = [300, 200, None, 400]
    monkeypatch.setattr(counters, "peak_rss_bytes", iter(marks).__next__)
    memory = PeakMemory()
    assert [memory.read() for _ in marks] == [300, 300, None, 400]


def stats_of(monkeypatch: pytest.MonkeyPatch, stats: Callable[[Any], dict[str, Any]]) -> None:
    """A CUDA build on a machine with a GPU, whose allocator says this."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"), raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)


def test_on_a_device_it_is_what_tensors_took_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stats(device: Any) -> dict[str, Any]:
        asked.append(device)
        return {f"{name}_bytes": {"all": {"peak": peak}} for name, peak in (("allocated", 7), ("reserved", 9))}

    stats_of(monkeypatch, stats)
    memory = PeakMemory()
    assert memory.read(CLOCK) == 7
    assert asked == ["cuda:1"] * 2
    assert memory.last[1:] == (7, 9)
    assert memory.last.process_peak_rss_bytes


def test_an_allocator_that_keeps_no_marks_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stats_of(monkeypatch, lambda device: {})
    memory = PeakMemory()
    assert memory.read(CLOCK) is None
    assert memory.last == Peaks(memory.last.process_peak_rss_bytes)
    assert memory.read(SimpleNamespace(stream=None)) is None  # type: ignore[arg-type]
