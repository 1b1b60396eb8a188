"""The phases of a training in which optimizers follow one another: stages, folds, the trials of a study.

Phases that train the same (a model and an optimizer of the same classes, and as many parameters) are one line of the
card. The headline is of one line, the one with most time where nobody has asked for another. As the phases of the ranks
follow each other together, those of the lowest rank count for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.steady import SteadyWindow, find_steady
from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import Aggregate, Phase

if TYPE_CHECKING:
    from ddlprof.store import IntArray, RankData

LATEST = 0
"""Stands for the line of the phase that began last."""
LEAST_STEPS = 3
"""Of fewer steps, in the median, phases are turns that optimizers take, or an optimizer is made for each batch."""
MOST_LINES = 6
"""If there are more lines, phases of the same model and optimizer are one whatever their sizes."""
_OF_UPDATE = ("optimizer_loops", "optimizer_switch", "optimizer_tensors")
DIFFER = "the phases are those of rank {rank}; other ranks have others"


@dataclass(frozen=True)
class PhaseLine:
    """One line: the phases that train the same."""

    number: int
    """The number of the line, from 1, in the order in which they began."""
    phases: int
    model: str | None
    """The class of the model; None: not known."""
    optimizer: str
    parameters: int | None
    """The number of parameters that the optimizer updates; None where the phases differ in it."""
    steps: int
    """The number of steps of one rank."""
    mean_s: float | None
    """The mean of the steady ones, of all ranks; None: there is none."""
    share: float
    """The share of the time of all steps."""
    first_steps: list[int]

    @property
    def name(self) -> str:
        """`Encoder with Adam`."""
        return f"{self.model} with {self.optimizer}" if self.model else self.optimizer


@dataclass(frozen=True)
class Phases:
    """The phases of an attempt, by lines."""

    lines: list[PhaseLine]
    shown: PhaseLine
    """The line that the headline is of."""
    starts: IntArray
    """The first step of each phase, ascending."""
    line_of: IntArray
    """For each phase the index of its line."""

    def line(self, steps: IntArray) -> IntArray:
        """For each step number the index of its line."""
        return _line(self.starts, self.line_of, steps)

    def holds(self, step: int) -> bool:
        """Whether a step belongs to the shown line."""
        return bool(self.line(np.array([step]))[0] == self.shown.number - 1)

    def means_ns(self, steps: IntArray) -> IntArray | None:
        """For each step number the mean of the steps of its line; None if one is not known."""
        means = [line.mean_s for line in self.lines]
        known = [round(1e9 * mean) for mean in means if mean is not None]
        return np.array(known, dtype=np.int64)[self.line(steps)] if len(known) == len(means) else None

    def manifest(self, manifest: Manifest | None, batch: int | None, passes: int) -> Manifest | None:
        """The manifest without what was found of another line: most of it in the first steps.

        `batch`: the samples of a rank in one forward of the shown line. `passes`: its forwards in a step.
        """
        if manifest is None or len(self.lines) == 1:
            return manifest
        kept, name = manifest.training, self.shown.optimizer
        looked_at = kept.optimizer == name and [line.optimizer for line in self.lines].count(name) == 1
        of_update: dict[str, Any] = {each: getattr(kept, each) if looked_at else None for each in _OF_UPDATE}
        if self.shown.number == 1:
            return replace(manifest, training=replace(kept, optimizer=name, **of_update))
        training = TrainingFacts(
            optimizer=name,
            batch_per_rank=batch,
            micro_batches=passes,
            precision=kept.precision,
            strategy=kept.strategy,
            backend=kept.backend,
            comm_hook=kept.comm_hook,
            peak_device_memory_bytes=kept.peak_device_memory_bytes,
            peak_process_memory_bytes=kept.peak_process_memory_bytes,
            zero_stage=kept.zero_stage,
            data_parallel_ranks=kept.data_parallel_ranks,
            cpu_threads=kept.cpu_threads,
            anomaly_share=kept.anomaly_share,
            interpreter_hook=kept.interpreter_hook,
            debug_modes=kept.debug_modes,
            deterministic=kept.deterministic,
            **of_update,
        )
        model = ModelFacts(name=self.shown.model, parameters=self.shown.parameters)
        return replace(manifest, model=model, training=training)


def phases_and_window(
    ranks: Sequence[RankData], loader_workers: int, wanted: int | None = None
) -> tuple[Phases | None, SteadyWindow]:
    """The phases of an attempt, None of a training in one phase, and its steady window: of the shown line alone.

    `wanted`: the number of the line to show, or `LATEST`; None, or one that there is not: the one with most time.
    """
    summed = [aggregate for rank in ranks for aggregate in rank.aggregates]
    told = _told(ranks)
    if not told:
        return None, find_steady([rank.steps for rank in ranks], loader_workers, summed)
    starts = np.array([0, *(phase.step for phase in told[1:])], dtype=np.int64)
    keys = _keys(told)
    names = list(dict.fromkeys(keys))
    line_of = np.array([names.index(key) for key in keys], dtype=np.int64)
    found = [_of_line(ranks, told, starts, line_of, index, loader_workers, summed) for index in range(len(names))]
    whole = sum(line.share for line, _ in found)
    lines = [replace(line, share=line.share / whole if whole else 0.0) for line, _ in found]
    longest = max(lines, key=lambda line: line.share)
    number = int(line_of[-1]) + 1 if wanted == LATEST else wanted
    shown = next((line for line in lines if line.number == number), longest)
    return Phases(lines, shown, starts, line_of), _joined(ranks, [window for _, window in found], shown)


def of_line(phases: Phases | None, rank: RankData) -> RankData:
    """The rank with only the amounts that its model got in the shown line."""
    start = rank.steps["start_ns"]
    if phases is None or not rank.amounts or not len(start):
        return rank
    rows = np.searchsorted(start, [each.time_ns for each in rank.amounts], side="right") - 1
    own = phases.line(rank.steps["step"][np.maximum(rows, 0)]) == phases.shown.number - 1
    return replace(rank, amounts=[each for each, is_own in zip(rank.amounts, own, strict=True) if is_own])


def differ(ranks: Sequence[RankData]) -> str | None:
    """A word where the phases of other ranks do not begin with the same steps as those of the lowest."""
    lowest = _lowest(ranks)
    own = [phase.step for phase in lowest.phases]
    alike = all([phase.step for phase in rank.phases] == own for rank in ranks if rank.complete)
    return None if alike else DIFFER.format(rank=lowest.rank)


def _lowest(ranks: Sequence[RankData]) -> RankData:
    return min(ranks, key=lambda rank: rank.rank)


def _told(ranks: Sequence[RankData]) -> list[Phase]:
    """The phases of the lowest rank; none if there is one only, or if they are mere turns."""
    lowest = _lowest(ranks)
    numbers, phases = lowest.steps["step"], lowest.phases
    if len(phases) < 2 or not len(numbers):
        return []
    lengths = np.diff([*(phase.step for phase in phases), max(int(numbers[-1]) + 1, phases[-1].step)])
    return phases if np.median(lengths) >= LEAST_STEPS else []


def _keys(phases: Sequence[Phase]) -> list[Hashable]:
    """For each phase what it trains, more coarsely where that would make many lines."""
    keys: list[Hashable] = [(phase.model, phase.optimizer, phase.parameters) for phase in phases]
    return keys if len(set(keys)) <= MOST_LINES else [(phase.model, phase.optimizer) for phase in phases]


def _line(starts: IntArray, line_of: IntArray, steps: IntArray) -> IntArray:
    return np.asarray(line_of[np.searchsorted(starts, steps, side="right") - 1])


def _of_line(
    ranks: Sequence[RankData],
    told: Sequence[Phase],
    starts: IntArray,
    line_of: IntArray,
    index: int,
    loader_workers: int,
    summed: Sequence[Aggregate],
) -> tuple[PhaseLine, SteadyWindow]:
    """The line of this index, with its time in place of its share, and its steady window."""

    def own(aggregates: Sequence[Aggregate]) -> list[Aggregate]:
        return [each for each in aggregates if _line(starts, line_of, np.array([each.first_step]))[0] == index]

    phases = [phase for phase, line in zip(told, line_of, strict=True) if line == index]
    tables = [rank.steps.only(_line(starts, line_of, rank.steps["step"]) == index) for rank in ranks]
    sums = own(summed)
    window = find_steady(tables, loader_workers, sums, starts[line_of == index])
    usual = [each for each in sums if not each.flags & window.unusual_flags]
    steady = [table["step_ns"][window.is_steady(table["step"])] for table in tables]
    number = sum(map(len, steady)) + sum(each.steps for each in usual)
    time = sum(int(times.sum()) for times in steady) + sum(each.step_ns for each in usual)
    lowest = _lowest(ranks)
    rows, of_lowest = tables[ranks.index(lowest)], own(lowest.aggregates)
    sizes = {phase.parameters for phase in phases}
    line = PhaseLine(
        number=index + 1,
        phases=len(phases),
        model=phases[0].model,
        optimizer=phases[0].optimizer,
        parameters=sizes.pop() if len(sizes) == 1 else None,
        steps=len(rows) + sum(each.steps for each in of_lowest),
        mean_s=time / number / 1e9 if number else None,
        share=float(rows["step_ns"].sum()) + sum(each.step_ns for each in of_lowest),
        first_steps=starts[line_of == index].tolist(),
    )
    return line, window


def _joined(ranks: Sequence[RankData], windows: Sequence[SteadyWindow], shown: PhaseLine) -> SteadyWindow:
    """The window over all steps: the steady ones of the shown line, and the warm-up of each."""
    steps = np.unique(np.concatenate([rank.steps["step"] for rank in ranks]))
    of_shown = windows[shown.number - 1]
    warm = np.concatenate([window.steps[window.warmup] for window in windows])
    return replace(
        of_shown,
        steps=steps,
        steady=np.isin(steps, of_shown.steps[of_shown.steady]),
        warmup=np.isin(steps, warm),
    )


def batch_of(ranks: Sequence[RankData], steady: Sequence[NDArray[np.bool_]]) -> tuple[int | None, int]:
    """The samples of a forward in the steady steps, None where not known, and the forwards of a step, in the median."""
    samples = np.concatenate([rank.steps["samples"][mask] for rank, mask in zip(ranks, steady, strict=True)])
    passes = np.concatenate([rank.steps["microbatches"][mask] for rank, mask in zip(ranks, steady, strict=True)])
    usual = max(int(np.median(passes)), 1) if len(passes) else 1
    known = samples > 0
    return (round(float(np.median(samples[known])) / usual) if known.any() else None), usual
