"""Predicts what training B models as one takes and gains, from timed steps of a few models.

Steps of different ways to train are timed in turns, so that other work on the machine affects all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from ddlprof.extensions.fusion.results import FusionPrediction

Variant = TypeVar("Variant")
_WARM_UP = 3
_BLOCK = 4
"""The number of steps timed together. The first step after those of another way finds cold caches."""
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 25


def interleaved(
    variants: Mapping[Variant, Callable[[], object]],
    budget_s: float,
    device: torch.device,
) -> dict[Variant, float]:
    """The seconds of one step of each way: the median over blocks. Ends after `budget_s`, but not before three blocks.

    For one thread on a CPU it is processor time, which leaves out other work on the machine.
    """
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for step in variants.values():
        for _ in range(_WARM_UP):
            step()
    wait()
    times: dict[Variant, list[float]] = {variant: [] for variant in variants}
    begin = clock()
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and clock() - begin > budget_s:
            break
        for variant, step in variants.items():
            before = clock()
            for _ in range(_BLOCK):
                step()
            wait()
            times[variant].append((clock() - before) / _BLOCK)
    return {variant: statistics.median(each) for variant, each in times.items()}


def with_threads(number: int, step: Callable[[], object]) -> Callable[[], None]:
    """The step, computed with that number of threads."""

    def stepped() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(number)
        try:
            step()
        finally:
            torch.set_num_threads(before)

    return stepped


WORTH_GAIN = 1.2
"""The gain from which fusing is worth it. Predictions are off by tens of percent, so less may be a loss."""


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fits T(B) = a + b B by least squares of the relative errors.

    Returns a (launches) and b (each model), both at least 0.
    """
    weights = [1 / time**2 for _, time in points]
    total = sum(weights)
    mean_b = sum(w * b for w, (b, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, points, strict=True))
    if not spread:
        return 0.0, mean_t / mean_b
    slope = sum(w * (b - mean_b) * (t - mean_t) for w, (b, t) in zip(weights, points, strict=True)) / spread
    if slope <= 0:  # more models took no longer
        return mean_t, 0.0
    if mean_t < slope * mean_b:
        square = sum(w * b * b for w, (b, _) in zip(weights, points, strict=True))
        return 0.0, sum(w * b * t for w, (b, t) in zip(weights, points, strict=True)) / square
    return mean_t - slope * mean_b, slope


def sizes_to_time(models: int) -> list[int]:
    """The numbers of models for timing before `models` models train: a quarter and three quarters of them."""
    return [max(1, models // 4), max(2, 3 * models // 4)]


def verdict(found: FusionPrediction) -> tuple[bool, str]:
    """Whether to fuse, and the reason."""
    beside = found.gain_beside
    share = f"{100 * found.launch_share:.0f} % of a step is the same for one model and for many"
    if found.gain < WORTH_GAIN:
        return False, f"{share}: {found.gain:.2f} times as fast as one after another, less than {WORTH_GAIN:g}"
    if beside is not None and beside < 1:
        return False, f"{share}: {found.beside} processes side by side are faster, fused is {beside:.2f} times as fast"
    return True, f"{share}: {found.gain:.2f} times as fast as one after another"
