"""What a report says of the machine during the training, and about the overhead of ddlprof itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.summary import Summary

if TYPE_CHECKING:
    from ddlprof.store import RankData


@dataclass(frozen=True)
class ContextLine:
    """Host and device counters during the training, which are context for the verdict, not its evidence."""

    cpu_percent: float | None
    queued_share: float | None
    """The share of its time that the main thread waited for a processor, of the rank that waited most."""
    process_rss_bytes: int | None
    """The highest value of all ranks, like the next field."""
    gpu_memory_bytes: int | None
    gpu_percent: float | None
    gpu_power_w: float | None
    process_peak_rss_bytes: int | None
    """The highest of all ranks at any time, like the next two fields."""
    gpu_peak_allocated_bytes: int | None
    gpu_peak_reserved_bytes: int | None


@dataclass(frozen=True)
class OverheadLine:
    """The overhead of ddlprof itself."""

    hooks_s_per_step: float | None
    hooks_share: float | None
    helper_core_share: float | None
    calibration_s: float | None
    """The seconds before the training in which links inside the machine were timed."""


def context_line(ranks: list[RankData], queued: float | None) -> ContextLine:
    """The counters of these ranks; `queued`: how much of its time the one that waited most waited for a processor."""

    def known(columns: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = np.concatenate([*columns, np.zeros(0)])
        return values[~np.isnan(values)]

    def mean(name: str) -> float | None:
        values = known([rank.context[name][_while_training(rank)] for rank in ranks])
        return float(values.mean()) if len(values) else None

    def most(name: str) -> int | None:
        values = known([rank.context[name] for rank in ranks])
        return int(values.max()) if len(values) else None

    return ContextLine(
        cpu_percent=mean("cpu_percent"),
        queued_share=queued,
        process_rss_bytes=most("process_rss_bytes"),
        gpu_memory_bytes=most("gpu_memory_bytes"),
        gpu_percent=mean("gpu_percent"),
        gpu_power_w=mean("gpu_power_w"),
        process_peak_rss_bytes=most("process_peak_rss_bytes"),
        gpu_peak_allocated_bytes=most("gpu_peak_allocated_bytes"),
        gpu_peak_reserved_bytes=most("gpu_peak_reserved_bytes"),
    )


def _while_training(rank: RankData) -> NDArray[np.bool_]:
    """A mask over the rows of counters that leaves out the time before and after the training."""
    time_ns, steps = rank.context["time_ns"], rank.steps
    if not len(steps):
        return np.ones(len(time_ns), dtype=bool)
    first, last = int(steps["start_ns"][0]), int(steps["start_ns"][-1] + steps["step_ns"][-1])
    during = (time_ns >= first) & (time_ns <= last)
    return during if during.any() else np.ones(len(time_ns), dtype=bool)


def overhead_line(ranks: list[RankData], summary: Summary | None, calibration: dict[str, Any] | None) -> OverheadLine:
    """The overhead of ddlprof itself on these ranks."""
    costs = [rank.overhead for rank in ranks if rank.overhead]
    steps, wall_ns = sum(c.hook_steps for c in costs), sum(c.wall_ns for c in costs)
    hooks_s = sum(c.hook_ns for c in costs) / steps / 1e9 if steps else None
    step_ns = summary.mean_ns("step") if summary else None
    return OverheadLine(
        hooks_s_per_step=hooks_s,
        hooks_share=hooks_s * 1e9 / step_ns if hooks_s is not None and step_ns else None,
        helper_core_share=sum(c.helper_cpu_ns for c in costs) / wall_ns if wall_ns else None,
        calibration_s=calibration.get("seconds") if calibration else None,
    )
