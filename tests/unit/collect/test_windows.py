"""What a profiler window says of a step."""

from __future__ import annotations

from ddlprof.collect.windows import Activity, summarise
from ddlprof.model.records import WindowRow


def test_a_window() -> None:
    activities = [
        Activity("gemm", 100, 140),
        Activity("ncclKernel_AllReduce", 120, 180),
        Activity("Memcpy HtoD", 190, 200),
        Activity("gemm", 130, 150),
    ]
    assert summarise(50, 2, activities) == WindowRow(
        first_update=50, updates=2, window_ns=100, work_ns=60, comm_only_ns=30, kernels=3
    )


def test_an_empty_window_says_nothing() -> None:
    assert summarise(50, 2, []) is None
