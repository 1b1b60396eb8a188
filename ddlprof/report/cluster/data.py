"""What `ddlprof cluster simulate` found, as plain data, ready for JSON. None means not known.

`build` is the only place that turns results into it; the formats only render it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

from ddlprof.cluster.sweep.figures import CaseResult, Figures

SIMULATED_SCHEMA_VERSION = 1
HEADLINE = "mean_completion_s"
"""The figure that policies are ordered by in a sentence."""
LESS, MORE = -1, 1
BETTER = {
    "mean_completion_s": LESS, "median_completion_s": LESS, "p95_completion_s": LESS, "makespan_s": LESS,
    "mean_queueing_s": LESS, "comm_gpu_h": LESS, "gpu_h": LESS, "utilisation": MORE,
}  # fmt: skip
"""What is better; figures that are not here have no best."""
_SAME = 1e-9
"""Figures closer than this, relatively, are the same but for rounding."""


@dataclass(frozen=True)
class Question:
    """What was simulated."""

    trace: str
    jobs: int
    asked_gpu_h: float | None
    """GPU-hours the jobs would take without waiting."""
    span_s: float
    """From the first to the last submission in the trace."""
    cluster: str
    machines: int
    racks: int
    gpus: int
    gpu_models: list[str]
    seeds: list[int]
    restart_s: float
    pred_error: float
    draws_arrivals: bool
    notes: list[str]
    """What was left out or assumed, one sentence each."""


@dataclass(frozen=True)
class FigureLine:
    """One figure of a policy over the seeds."""

    mean: float
    sd: float | None
    """The standard deviation over the seeds; None where there is one."""
    is_best: bool
    """Whether no other policy has a better mean, and one has a worse."""


@dataclass(frozen=True)
class PolicyLine:
    """A policy in one block."""

    policy: str
    figures: dict[str, FigureLine]
    above_best: float
    """How much longer its mean completion time is than that of the best, as a share of the latter."""
    wins: int
    """The seeds in which its mean completion time is the shortest, or as short."""
    use: list[tuple[float, float, float]]
    """Of the first seed: (seconds, share of the GPUs in use, jobs that wait)."""
    completion_s: list[float]
    """Completion times at equal steps of the share of jobs, all seeds together."""


@dataclass(frozen=True)
class Block:
    """Policies on the same jobs."""

    load: float | None
    """As asked for; None: arrivals as in the trace."""
    offered_load: float | None
    """The load that there was, the mean over the seeds."""
    predictable: float | None
    policies: list[PolicyLine]

    @property
    def best(self) -> PolicyLine:
        """The one with the shortest mean completion time."""
        return min(self.policies, key=lambda line: line.figures[HEADLINE].mean)


@dataclass(frozen=True)
class CaseLine:
    """One simulation."""

    policy: str
    seed: int
    load: float | None
    predictable: float | None
    figures: dict[str, float]


@dataclass(frozen=True)
class SimulatedData:
    """All of it."""

    question: Question
    blocks: list[Block]
    cases: list[CaseLine]
    schema: int = field(default=SIMULATED_SCHEMA_VERSION)


def build(question: Question, results: Sequence[CaseResult]) -> SimulatedData:
    """Puts the results of one question side by side; those of a block stand together."""
    groups = groupby(results, key=lambda result: (result.case.load, result.case.predictable))
    return SimulatedData(
        question,
        [_block(load, predictable, list(found)) for (load, predictable), found in groups],
        [CaseLine(r.case.policy, r.case.seed, r.case.load, r.case.predictable, asdict(r.figures)) for r in results],
    )


def _block(load: float | None, predictable: float | None, results: Sequence[CaseResult]) -> Block:
    by_policy: dict[str, list[CaseResult]] = {}
    for result in results:
        by_policy.setdefault(result.case.policy, []).append(result)
    means = {policy: _means(found) for policy, found in by_policy.items()}
    shortest = min(each[HEADLINE] for each in means.values())
    offered = [result.load for result in results if result.load is not None]
    return Block(
        load=load,
        offered_load=statistics.fmean(offered) if offered else None,
        predictable=predictable,
        policies=[
            PolicyLine(
                policy=policy,
                figures={name: _figure(name, policy, found, means) for name in Figures.__dataclass_fields__},
                above_best=means[policy][HEADLINE] / shortest - 1,
                wins=_wins(policy, by_policy),
                use=found[0].use,
                completion_s=sorted(each for result in found for each in result.completion_s),
            )
            for policy, found in by_policy.items()
        ],
    )


def _means(found: Sequence[CaseResult]) -> dict[str, float]:
    rows = [asdict(result.figures) for result in found]
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def _figure(
    name: str, policy: str, found: Sequence[CaseResult], means: Mapping[str, Mapping[str, float]]
) -> FigureLine:
    values = [getattr(result.figures, name) for result in found]
    every = [each[name] for each in means.values()]
    own = means[policy][name]
    best = min(every) if BETTER.get(name) == LESS else max(every)
    differ = not math.isclose(min(every), max(every), rel_tol=_SAME)
    return FigureLine(
        mean=own,
        sd=statistics.stdev(values) if len(values) > 1 else None,
        is_best=name in BETTER and differ and math.isclose(own, best, rel_tol=_SAME),
    )


def _wins(policy: str, by_policy: Mapping[str, Sequence[CaseResult]]) -> int:
    """Results of a policy stand in the order of the seeds."""
    of_seeds = zip(*by_policy.values(), strict=True)
    shortest = [min(getattr(result.figures, HEADLINE) for result in of_seed) for of_seed in of_seeds]
    return sum(
        math.isclose(getattr(result.figures, HEADLINE), best, rel_tol=_SAME)
        for result, best in zip(by_policy[policy], shortest, strict=True)
    )
