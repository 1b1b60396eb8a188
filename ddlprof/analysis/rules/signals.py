"""Signals for the rules, computed from the steps of ranks and the counters of their machines.

These are bursts of waits for data, work that is uneven between ranks by turns, devices that wait for their hosts,
clocks that are held down, and memory that grows all the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.amounts import values_by_step
from ddlprof.analysis.thresholds import (
    CALM_ROUNDS,
    FINDING_STEPS,
    GROWTH_BYTES,
    GROWTH_PARTS,
    GROWTH_READINGS,
    GROWTH_SHARE,
    GROWTH_STEADINESS,
    GROWTH_SURE,
    HOT_C,
    THROTTLED_CLOCK,
    THROTTLED_COMPUTE,
    THROTTLED_READINGS,
    THROTTLED_SHARE,
)
from ddlprof.model.classes import OWN
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.amounts import Amounts
    from ddlprof.analysis.run import Attempt, RankAnalysis
    from ddlprof.store import RankData


@dataclass(frozen=True)
class DataWaitBursts:
    """The waits for data of the rank that waits longest."""

    number: int
    longest_s: float
    """The sum of waits in the longest burst, in seconds."""
    calm_share: float
    """The share of steps in rows without a burst that are so long that the workers must have kept up."""
    calm_wait_share: float
    """The mean wait in these steps, divided by the mean wait in all steps."""
    steps: int


def find_bursts(data_ns: NDArray[np.int64], ahead: int) -> DataWaitBursts | None:
    """Finds bursts of waits in consecutive steps; None if there are no waits or all are equal.

    `ahead`: the number of batches that workers hold ready. A step waits if its wait is longer than the mean. Such steps
    belong to one burst if at most `ahead` others are between them.
    """
    mean = data_ns.mean() if len(data_ns) else 0.0
    if mean <= 0 or data_ns.min() == data_ns.max():
        return None
    waiting = np.flatnonzero(data_ns > mean)
    cuts = np.flatnonzero(np.diff(waiting) > ahead) + 1
    bursts = np.split(waiting, cuts)
    edges = np.concatenate([[-1], waiting, [len(data_ns)]])
    rows = [slice(first + 1, last) for first, last in itertools.pairwise(edges)]
    calm = [data_ns[row] for row in rows if row.stop - row.start >= CALM_ROUNDS * ahead]
    calm_ns = np.concatenate([*calm, np.zeros(0, dtype=np.int64)])
    return DataWaitBursts(
        number=len(bursts),
        longest_s=max(float(data_ns[burst].sum()) for burst in bursts) / 1e9,
        calm_share=len(calm_ns) / len(data_ns),
        calm_wait_share=float(calm_ns.mean() / mean) if len(calm_ns) else 1.0,
        steps=len(data_ns),
    )


@dataclass(frozen=True)
class UnevenWork:
    """How samples and times of ranks differ within steps, over the steady steps that all ranks have."""

    samples_spread: float
    """The standard deviation of the ranks' samples in a step, or of what `unit` says, as a share of their mean."""
    correlation: float
    """The correlation of a rank's samples with its own time in a step, each relative to the mean of the ranks."""
    steps: int
    unit: str = "samples"
    """`samples`, `tokens` of text, or `values`: the numbers in tensors of other samples that differ in length."""


def find_uneven(ranks: Sequence[RankAnalysis], amounts: Amounts | None = None) -> UnevenWork | None:
    """How unevenly work is spread: in samples, or in their length if that explains the ranks' times better.

    None for one rank, or if neither is known. The length is noted in some steps only, and grows with the samples. Those
    of a rank that loads for all are not compared with what the others' models get.
    """
    if len(ranks) < 2:
        return None
    alike = len({rank.times.has_loader for rank in ranks}) == 1
    samples = None
    if alike:
        samples = _uneven(ranks, [rank.data.steps["samples"] for rank in ranks], "samples", everywhere=True)
    if amounts is None:
        return samples
    unit = "tokens" if amounts.is_text else "values"
    length = _uneven(ranks, [values_by_step(rank.data) for rank in ranks], unit)
    if samples is None or length is None:
        return samples or length
    return length if length.correlation > samples.correlation + _AS_WELL else samples


def _uneven(
    ranks: Sequence[RankAnalysis], amounts: Sequence[NDArray[np.int64]], unit: str, everywhere: bool = False
) -> UnevenWork | None:
    """How unevenly this is spread, over the steady steps in which all ranks know it.

    `everywhere`: None if it is not known in one of them.
    """
    seen = [_numbers(rank.times.step) for rank in ranks]
    common = seen[0][0]
    for rank, (numbers, row) in zip(ranks, seen, strict=True):
        at = np.minimum(np.searchsorted(numbers, common), max(len(numbers) - 1, 0))
        common = common[(numbers[at] == common) & rank.times.steady[row[at]]] if len(numbers) else numbers
    if not len(common):
        return None
    own, got = [], []
    for rank, (numbers, row), amount in zip(ranks, seen, amounts, strict=True):
        rows = row[np.searchsorted(numbers, common)]
        own.append(sum(np.maximum(rank.times.times[name][rows], 0) for name in OWN))
        got.append(amount[rows])
    known = (np.array(got) != MISSING).all(axis=0)
    if not known.any() or (everywhere and not known.all()):
        return None
    time_away, samples_away = (_away(np.array(each, float)[:, known]) for each in (own, got))
    mean = float(np.mean(np.array(got)[:, known]))
    spread = float(samples_away.std()) / mean if mean else 0.0
    both = float(np.sqrt((time_away**2).sum() * (samples_away**2).sum()))
    correlation = float((time_away * samples_away).sum()) / both if both else 0.0
    return UnevenWork(spread, correlation, int(known.sum()), unit)


def steps_by_rank(ranks: Sequence[RankAnalysis]) -> dict[int, int]:
    """The steps of each rank; empty unless all ranks of the job are there and have ended well."""
    if len(ranks) < ranks[0].data.header.world_size or any(rank.data.status != "ok" for rank in ranks):
        return {}
    return {rank.data.rank: rank.data.step_count for rank in ranks}


def _numbers(steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct numbers in order, and a row with each. Numbers are in order unless the file is damaged."""
    if (np.diff(steps) > 0).all():
        return steps, np.arange(len(steps))
    return np.unique(steps, return_index=True)


def _away(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The difference of each rank from the mean of its step."""
    return np.asarray(values - values.mean(axis=0))


def lag_share(ranks: Sequence[RankAnalysis]) -> float | None:
    """How far the device is at most behind its host in a step, as a share of computing: the median over steps.

    Launches queue up, so a device with enough to do falls behind: at least by some of its computing if the host waits
    for it, and by whole steps if the host never does. A device that waits for launches passes an event as soon as the
    host has recorded it. The result is that of the rank whose device is furthest behind, as the others may wait for it.
    None if fewer than `FINDING_STEPS` steady steps of some rank tell it.
    """
    shares = [_lag_of_rank(rank) for rank in ranks]
    return max((share for share in shares if share is not None), default=None) if None not in shares else None


def _lag_of_rank(rank: RankAnalysis) -> float | None:
    steps = rank.data.steps
    lag, compute = steps["device_lag_ns"], steps["compute_ns"]
    reported = rank.times.steady & (lag != MISSING) & (compute > 0)
    if np.count_nonzero(reported) < FINDING_STEPS:
        return None
    return float(np.median(lag[reported] / compute[reported]))


POWER_BITS = 0x04 | 0x80
"""NVML's bits for a clock held down by power: the power cap by software, and the power brake by hardware."""
HEAT_BITS = 0x08 | 0x20 | 0x40
"""NVML's bits for heat: slowdown by hardware, and thermal slowdown by software and by hardware."""


@dataclass(frozen=True)
class ThrottledDevice:
    """A rank whose device's clock was held down by heat or power."""

    rank: int
    readings_share: float
    readings: int
    clock_mhz: float
    free_clock_mhz: float
    temperature_c: float | None
    by_heat: bool
    lost_s: float
    """The seconds by which computing took longer in the mean step of this rank."""


def find_throttled(ranks: Sequence[RankAnalysis]) -> list[ThrottledDevice]:
    """The ranks whose clock was held down and that computed longer then, compared with other times or other ranks."""
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
            ThrottledDevice(
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
    """A mask of readings at which the clock was held down, by the driver's reasons or else by the temperature."""
    reasons = rank.context["gpu_throttle_reasons"]
    reported = ~np.isnan(reasons)
    bits = np.where(reported, reasons, 0).astype(np.int64)
    hot = np.nan_to_num(rank.context["gpu_temperature_c"]) >= HOT_C
    return np.asarray(np.where(reported, bits & (POWER_BITS | HEAT_BITS) != 0, hot))


def _by_heat(rank: RankData, held: NDArray[np.bool_]) -> bool:
    reasons = rank.context["gpu_throttle_reasons"][held]
    reported = reasons[~np.isnan(reasons)].astype(np.int64)
    return not len(reported) or bool(2 * np.count_nonzero(reported & HEAT_BITS) > len(reported))


def _compute_ns(rank: RankAnalysis, at: NDArray[np.bool_]) -> float | None:
    """The mean computing, in ns, of the steady steps between one of these readings and the reading before it."""
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


_AS_WELL = 0.05
"""How much better the length of samples must explain the ranks' times than their number, known in all steps."""
_MOST_POINTS = 200
"""Longer series are thinned out, as the slope of every pair of readings is computed."""


@dataclass(frozen=True)
class MemoryGrowth:
    """The memory of one rank that grows steadily."""

    rank: int
    where: str
    """`process`, `device` or `workers`: of a loader, without what they share with the process."""
    bytes_per_step: float
    bytes_now: float
    readings: int


def find_growths(ranks: Sequence[RankAnalysis]) -> list[MemoryGrowth]:
    """The ranks whose memory grows all the time."""
    return [growth for rank in ranks if (growth := _growth(rank)) is not None]


def find_worker_growths(ranks: Sequence[RankAnalysis]) -> list[MemoryGrowth]:
    """The ranks whose loader's workers take more and more memory: that of workers that end is free."""
    return [growth for rank in ranks if (growth := _growth_of(rank, "workers", "workers_new_bytes")) is not None]


def _growth(rank: RankAnalysis) -> MemoryGrowth | None:
    """The growth of the memory of tensors on the device, or of the process on a CPU."""
    if rank.data.header.device != "cpu":
        return _growth_of(rank, "device", "gpu_peak_allocated_bytes")
    return _growth_of(rank, "process", "process_private_bytes")


def _growth_of(rank: RankAnalysis, where: str, counter: str) -> MemoryGrowth | None:
    steps, time_ns, steady = rank.data.steps, rank.data.context["time_ns"], rank.times.steady
    if not steady.any():
        return None
    ends_ns = steps["start_ns"] + steps["step_ns"]
    during = (time_ns >= steps["start_ns"][steady][0]) & (time_ns <= ends_ns[-1])
    held = rank.data.context[counter][during]
    slope = steady_growth(np.interp(time_ns[during], ends_ns, steps["step"]), held)
    if slope is None:
        return None
    read = held[~np.isnan(held)]  # workers are read more seldom than the rest
    return MemoryGrowth(rank.data.rank, where, slope, float(read[-1]), len(read))


def free_bytes(host: dict[str, Any], ranks: Sequence[RankAnalysis]) -> int | None:
    """The bytes free at the last reading, on the machine with the fewest."""
    total = host.get("memory_bytes")
    used = [rank.data.context["memory_used_bytes"] for rank in ranks]
    last = [known[-1] for each in used if len(known := each[~np.isnan(each)])]
    return int(max(0, total - max(last))) if isinstance(total, int) and last else None


def peak_rises(ranks: Sequence[RankAnalysis]) -> float | None:
    """How many bytes a step the peak of memory rises by, on the rank on which it rises fastest; None if by little."""
    found = []
    for rank in ranks:
        known = rank.times.steady & (rank.data.steps["peak_memory_bytes"] != MISSING)
        steps, peak = rank.data.steps["step"][known], rank.data.steps["peak_memory_bytes"][known]
        if len(peak) < FINDING_STEPS or peak[-1] - peak[0] < max(GROWTH_BYTES, GROWTH_SHARE * peak[0]):
            continue
        found.append(float(peak[-1] - peak[0]) / float(steps[-1] - steps[0]))
    return max(found, default=None)


def steady_growth(step: NDArray[np.float64], held: NDArray[np.float64]) -> float | None:
    """The slope in bytes per step (Theil and Sen); None if memory does not grow through all the steps.

    `step`: the number of steps done at each reading; `held`: the bytes. Memory must grow from each of six parts of the
    steps to the next by nearly as much as on average, which a high-water mark that rises ever more rarely does not.
    Kendall's test excludes growth by chance.
    """
    known = ~np.isnan(held)
    step, held = step[known], held[known]
    if len(held) < GROWTH_READINGS or held[-1] - held[0] < max(GROWTH_BYTES, GROWTH_SHARE * held[0]):
        return None
    if not _in_every_part(step, held):
        return None
    chosen = np.unique(np.linspace(0, len(held) - 1, min(len(held), _MOST_POINTS)).astype(int))
    step, held = step[chosen], held[chosen]
    later, earlier = np.tril_indices(len(held), -1)
    steps_apart, apart = step[later] - step[earlier], held[later] - held[earlier]
    n = len(held)
    deviation = sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if np.sign(apart).sum() < GROWTH_SURE * deviation:
        return None
    return float(np.median(apart[steps_apart > 0] / steps_apart[steps_apart > 0]))


def _in_every_part(step: NDArray[np.float64], held: NDArray[np.float64]) -> bool:
    """Whether the slopes between parts with equally many readings are alike. Readings need not be evenly spaced."""
    mean_step, mean_held = (np.array([p.mean() for p in np.array_split(v, GROWTH_PARTS)]) for v in (step, held))
    if not (np.diff(mean_step) > 0).all():
        return False
    slopes = np.diff(mean_held) / np.diff(mean_step)
    return bool(slopes.min() >= GROWTH_STEADINESS * (mean_held[-1] - mean_held[0]) / (mean_step[-1] - mean_step[0]))


def idle_share(attempt: Attempt) -> float | None:
    """The share of the time in profiler windows in which the device did nothing."""
    windows = [window for rank in attempt.ranks for window in rank.data.windows]
    total = sum(window.window_ns for window in windows)
    return 1 - sum(window.work_ns for window in windows) / total if total else None
