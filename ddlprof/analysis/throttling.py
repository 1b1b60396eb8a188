"""Devices whose clock is held down by heat or power while their computing takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import (
    HOT_C,
    THROTTLED_CLOCK,
    THROTTLED_COMPUTE,
    THROTTLED_READINGS,
    THROTTLED_SHARE,
)

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis
    from ddlprof.store import RankData

POWER_BITS = 0x04 | 0x80
"""NVML's reasons for a low clock: the cap on power by software, and the brake by hardware."""
HEAT_BITS = 0x08 | 0x20 | 0x40
"""Slowdown by hardware, and heat by software and by hardware."""


@dataclass(frozen=True)
class Throttled:
    """One rank whose device was held down."""

    rank: int
    readings_share: float
    readings: int
    clock_mhz: float
    free_clock_mhz: float
    temperature_c: float | None
    by_heat: bool
    lost_s: float
    """What computing took longer, in the mean step of this rank."""


def find_throttled(ranks: Sequence[RankAnalysis]) -> list[Throttled]:
    """The ranks whose clock was held down and that computed longer meanwhile, than at other times or than others."""
    looked = [(rank, _held_down(rank.data)) for rank in ranks]
    free_ns = [_compute_ns(rank, ~held) for rank, held in looked]
    clocks = [_clock(rank.data, ~held) for rank, held in looked]
    found = []
    for number, (rank, held) in enumerate(looked):
        if held.sum() < max(THROTTLED_READINGS, THROTTLED_SHARE * len(held)):
            continue
        clock, slow_ns = _clock(rank.data, held), _compute_ns(rank, held)
        own, others = free_ns[number], [ns for i, ns in enumerate(free_ns) if i != number and ns is not None]
        usual_ns = own if own is not None else float(np.median(others)) if others else None
        highest = max((mhz for mhz in clocks if mhz is not None), default=None)
        if clock is None or highest is None or slow_ns is None or usual_ns is None:
            continue
        if clock > THROTTLED_CLOCK * highest or slow_ns < THROTTLED_COMPUTE * usual_ns:
            continue
        share = float(held.mean())
        temperature = _mean(rank.data.context["gpu_temperature_c"][held])
        found.append(
            Throttled(
                rank=rank.data.rank,
                readings_share=share,
                readings=len(held),
                clock_mhz=clock,
                free_clock_mhz=highest,
                temperature_c=temperature,
                by_heat=_by_heat(rank.data, held),
                lost_s=(slow_ns - usual_ns) * share / 1e9,
            )
        )
    return found


def _held_down(rank: RankData) -> NDArray[np.bool_]:
    """The readings at which the device was held down, by what the driver says or else by its heat."""
    reasons = rank.context["gpu_throttle_reasons"]
    told = ~np.isnan(reasons)
    bits = np.where(told, reasons, 0).astype(np.int64)
    hot = np.nan_to_num(rank.context["gpu_temperature_c"]) >= HOT_C
    return np.asarray(np.where(told, bits & (POWER_BITS | HEAT_BITS) != 0, hot))


def _by_heat(rank: RankData, held: NDArray[np.bool_]) -> bool:
    reasons = rank.context["gpu_throttle_reasons"][held]
    told = reasons[~np.isnan(reasons)].astype(np.int64)
    return not len(told) or bool(2 * np.count_nonzero(told & HEAT_BITS) > len(told))


def _compute_ns(rank: RankAnalysis, at: NDArray[np.bool_]) -> float | None:
    """The mean computing of the steady steps that ended before one of these readings and after the reading before."""
    time_ns, steps = rank.data.context["time_ns"], rank.data.steps
    if not len(time_ns):
        return None
    end_ns = steps["start_ns"] + steps["step_ns"]
    reading = np.minimum(np.searchsorted(time_ns, end_ns), len(time_ns) - 1)
    chosen = rank.times.steady & at[reading]
    if np.count_nonzero(chosen) < THROTTLED_READINGS:
        return None
    return float(rank.times.times["compute"][chosen].mean())


def _clock(rank: RankData, at: NDArray[np.bool_]) -> float | None:
    return _mean(rank.context["gpu_clock_mhz"][at])


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
