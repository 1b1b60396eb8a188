"""What stands still or begins anew in steady steps: pauses of the garbage collector, and compiling again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.model.records import COMPILATION

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt, RankAnalysis
    from ddlprof.analysis.sources import Sources
    from ddlprof.model.records import GraphBreak


_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")
"""The name of the part of a function after a break."""
_LONGEST_OF_YOUNG_S = 0.5
"""What torch and its libraries have made is collected in 0.1 to 0.4 s; longer ones are of the objects of scripts."""


@dataclass(frozen=True)
class Pauses:
    """Pauses during the steady steps of one rank, that with the largest share."""

    number: float
    """How many there were in a step."""
    seconds: float
    """The seconds of a mean step."""
    longest_s: float
    full: float = 0.0
    """The collections of all generations in a step."""
    reason: str = ""
    """Why torch.compile compiled again, in its own words; empty if it did not say."""
    steps: int = 0
    """The number of steps in which it was looked for."""

    @property
    def lasting_s(self) -> float:
        """The seconds of a mean step without the two long pauses that any process has while it is young."""
        young_s = 2 * min(self.longest_s, _LONGEST_OF_YOUNG_S)
        return max(0.0, self.seconds - young_s / self.steps) if self.steps else 0.0


@dataclass(frozen=True)
class BrokenGraphs:
    """The graphs of torch.compile that are broken in functions in which steady steps were seen."""

    places: list[GraphBreak]
    share: float
    """The share of the stack samples of forwards and losses that are in these functions, between their graphs."""
    samples: int
    """The number of all stack samples of forwards and losses."""


def broken_graphs(ranks: Sequence[RankAnalysis], passes: Sources) -> BrokenGraphs | None:
    """The breaks that steady steps come by; None if none was seen. `passes`: where forwards and losses were.

    A function whose graph is whole has no frame in the stack, so that samples in it are of the parts between graphs.
    """
    broken = {each.place: each for rank in ranks for each in rank.data.graph_breaks}
    share: defaultdict[str, float] = defaultdict(float)
    for each in passes.shares:
        share[_function(each.place.text)] += each.share
    seen = [each for place, each in broken.items() if _function(place) in share]
    if not seen:
        return None
    return BrokenGraphs(seen, sum(share[name] for name in {_function(each.place) for each in seen}), passes.samples)


def _function(text: str) -> str:
    """File and function of a place, without the class, and also where dynamo goes on in the middle of the function."""
    place, _, name = _RESUMED.sub(r"\1", text).rpartition(" ")
    return f"{place.rpartition(':')[0]} {name.rpartition('.')[2]}"


def collector_pauses(ranks: Sequence[RankAnalysis]) -> Pauses | None:
    """The pauses of the garbage collector; None if none was seen in steady steps."""
    found = [pauses for rank in ranks if (pauses := _collector_of(rank)) is not None]
    return max(found, key=lambda each: each.seconds, default=None)


def _collector_of(rank: RankAnalysis) -> Pauses | None:
    """By the readings at both ends of the steady steps, the steps between which are all counted."""
    readings, steps, steady = rank.data.collector, rank.data.steps, rank.times.steady
    if not readings or np.count_nonzero(steady) < 2:
        return None
    first, last = np.flatnonzero(steady)[[0, -1]]
    begin, end = int(steps["start_ns"][first]), int(steps["start_ns"][last] + steps["step_ns"][last])
    at = np.array([0, *(reading.time_ns for reading in readings)], dtype=np.float64)

    def between(values: list[int]) -> float:
        known = np.array([0, *values], dtype=np.float64)
        return float(np.interp(end, at, known) - np.interp(begin, at, known))

    # Evaluations and checkpoints lie between them, too: pauses are as frequent there.
    of_step = (rank.summary.mean_ns("step") or 0.0) / max(end - begin, 1)
    return Pauses(
        number=between([reading.number for reading in readings]) * of_step,
        seconds=between([reading.total_ns for reading in readings]) * of_step / 1e9,
        longest_s=readings[-1].longest_ns / 1e9,
        full=between([reading.full for reading in readings]) * of_step,
        steps=int(steps["step"][last] - steps["step"][first]) + 1,
    )


def recompilations(headline: Attempt) -> Pauses | None:
    """What was compiled after the warm-up, in a mean step of those after it; None if nothing was.

    Steps in which torch.compile works are left out of the steady ones unless most do, so all steps count here.
    """
    found = [pauses for rank in headline.ranks if (pauses := _recompiled_by(rank)) is not None]
    return max(found, key=lambda each: each.seconds, default=None)


def _recompiled_by(rank: RankAnalysis) -> Pauses | None:
    steps, steady = rank.data.steps, rank.times.steady
    if not steady.any():
        return None
    first = int(np.flatnonzero(steady)[0])
    begin, end = int(steps["start_ns"][first]), int(steps["start_ns"][-1] + steps["step_ns"][-1])
    again = [span for span in rank.data.spans if span.what == COMPILATION and begin <= span.start_ns < end]
    number = int(steps["step"][-1] - steps["step"][first]) + 1
    if not again:
        return None
    return Pauses(
        number=len(again) / number,
        seconds=sum(span.duration_ns for span in again) / number / 1e9,
        longest_s=max(span.duration_ns for span in again) / 1e9,
        reason=rank.data.recompiled[-1] if rank.data.recompiled else "",
        steps=number,
    )
