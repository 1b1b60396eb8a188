"""How much the ranks' models got in a step, from the steps in which it was noted (`ddlprof.model.amounts`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.thresholds import FINDING_STEPS
from ddlprof.model.amounts import COUNTED_UPDATE, BatchAmount
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.store import IntArray, RankData


@dataclass(frozen=True)
class Amounts:
    """The mean step of each rank, by its number: samples, and the numbers in them, which are tokens of text."""

    samples: dict[int, float]
    values: dict[int, float]
    is_text: bool
    counted_per_sample: float | None = None
    """The values of a sample in the step of which the operations were counted, on the rank that the manifest is of."""
    padding_share: float | None = None
    """The share of all ranks' tokens that is padding."""

    @property
    def mean_values(self) -> float:
        """The values of a rank in a step, as a mean over the ranks."""
        return sum(self.values.values()) / len(self.values)

    @property
    def per_sample(self) -> float:
        """The values of a mean sample of all ranks."""
        samples = sum(self.samples.values())
        return sum(self.values.values()) / samples if samples else 0.0

    def of_rank(self, rank: int) -> float | None:
        """How many times the mean of the other ranks a rank gets in a step."""
        others = [values for number, values in self.values.items() if number != rank]
        mean = sum(others) / len(others) if others else 0.0
        return self.values[rank] / mean if rank in self.values and mean else None

    @property
    def work_of_mean(self) -> float | None:
        """The values of a mean sample of all ranks over those of the counted one: the factor of its FLOPs."""
        return self.per_sample / self.counted_per_sample if self.counted_per_sample else None


def amounts_of(ranks: Sequence[RankData]) -> Amounts | None:
    """What the ranks got; None unless it was noted on each."""
    usable = {rank.rank: _usable(rank) for rank in ranks}
    if not usable or not all(usable.values()):
        return None
    means = {number: _means(noted) for number, noted in usable.items()}
    values = {number: of_step for number, (_, of_step) in means.items()}
    first = usable[min(usable)]
    counted = next((each for each in first if each.update == COUNTED_UPDATE and each.samples), None)
    return Amounts(
        samples={number: samples for number, (samples, _) in means.items()},
        values=values,
        is_text=all(each.is_text for noted in usable.values() for each in noted),
        counted_per_sample=counted.values / counted.samples if counted is not None else None,
        padding_share=_padding(usable, values),
    )


def values_by_step(rank: RankData) -> IntArray:
    """For each step of a rank what its model got, MISSING where it was not noted."""
    found = np.full(len(rank.steps), MISSING, dtype=np.int64)
    start, length = rank.steps["start_ns"], rank.steps["step_ns"]
    for each in _usable(rank):
        row = int(np.searchsorted(start, each.time_ns, side="right")) - 1
        if row >= 0 and each.time_ns <= start[row] + length[row]:
            found[row] = each.values
    return found


def _usable(rank: RankData) -> list[BatchAmount]:
    return [each for each in rank.amounts if each.samples > 0 and each.values > 0]


def _means(noted: Sequence[BatchAmount]) -> tuple[float, float]:
    """The samples and the values of a mean step; the first steps count only where there are few others."""
    later = [each for each in noted if each.update > COUNTED_UPDATE + 2]
    chosen = later if len(later) >= FINDING_STEPS else noted
    return sum(each.samples for each in chosen) / len(chosen), sum(each.values for each in chosen) / len(chosen)


def _padding(usable: dict[int, list[BatchAmount]], values: dict[int, float]) -> float | None:
    """The share of padding of all ranks, each weighted with its tokens; None unless known on each."""
    shares = {}
    for number, noted in usable.items():
        looked = max(noted, key=lambda each: each.places)
        if not looked.places:
            return None
        shares[number] = min(looked.padding / looked.places, 1.0)
    return sum(values[number] * share for number, share in shares.items()) / sum(values.values())
