"""What is kept of a probe in which something fails."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from ddlprof.extensions.probe.collectives import RanksFailed
from ddlprof.extensions.probe.measure import _Measured
from ddlprof.extensions.probe.model import Figure


def test_what_fails_is_named_and_the_rest_is_kept() -> None:
    shown: list[int] = []
    device = SimpleNamespace(forget=lambda: None)
    measured = _Measured(device, 0.0, 1.0, lambda done, total: shown.append(done))  # type: ignore[arg-type]

    def half() -> Iterator[Figure]:
        yield Figure("memory", "memory_gb_s", "a", 10.0, "GB/s")
        yield Figure("memory", "memory_copy_gb_s", "a", float("nan"), "GB/s")
        raise MemoryError("not enough\nof it")

    def ranks() -> Iterator[Figure]:
        raise RanksFailed("a process failed")
        yield

    measured.add("memory", half)
    measured.add("collectives", ranks)
    measured.close()
    assert [figure.key for figure in measured.figures] == ["memory_gb_s"]
    assert measured.missing == ["memory: not enough", "collectives: a process failed"]
    assert shown[-1] == 100
