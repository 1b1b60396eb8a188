"""The results of `ddlprof cluster simulate` as plain data, ready for JSON. None means not known.

`build` is the only place that turns results into it; the formats only render it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from typing import Any

from ddlprof.extensions.cluster.policy import depends_on_seed
from ddlprof.extensions.cluster.profile import ClusterProfile
from ddlprof.extensions.cluster.simulation.metrics import ClusterUse, PolicyMetrics, Waited
from ddlprof.extensions.cluster.sweep.cases import CaseResult, SimulationCase
from ddlprof.extensions.cluster.sweep.run import Setting

SIMULATED_SCHEMA_VERSION = 1
FIGURES = tuple(each.name for each in fields(PolicyMetrics) if each.name != "jobs")
LESS, MORE = -1, 1
BETTER = {
    "makespan_s": LESS, "completion_mean_s": LESS, "completion_median_s": LESS, "completion_p95_s": LESS,
    "wait_mean_s": LESS, "wait_median_s": LESS, "wait_p95_s": LESS, "gpu_hours": LESS, "comm_gpu_hours": LESS,
    "jain": MORE, "worst_fairness": LESS, "unfair": LESS, "wait_longest_s": LESS,
}  # fmt: skip
"""Whether less or more of a figure is better. Left out: the share of GPUs in use, which waste raises, too, and stops,
which may be worth their time."""
OVERLOADED = (
    "with a load above 1 the queue grows until submissions end, so the times tell how long the trace is as much as how"
    " good a policy is"
)
_STARVED_JAIN = 0.1
"""Jain's index below which a few jobs bear nearly all of the waiting: no more than one in ten."""
_MOST_POINTS = 400
"""The most points of a distribution: a page has no pixels for more."""
_SLIGHTLY = 5e-4
"""Differences below this share are too small to be named."""
_SAME = 1e-9
"""Figures that differ relatively by less than this differ by rounding only."""


@dataclass(frozen=True)
class SimulationQuestion:
    """The trace, the cluster and the settings of the simulations."""

    trace: str
    jobs: int
    asked_gpu_hours: float | None
    """The GPU-hours of all jobs on the GPUs that they ask for; None: their durations were not measured."""
    submitted_within_s: float
    """The seconds from the first to the last submission in the trace."""
    cluster: str
    machines: int
    racks: int
    gpus: int
    gpu_models: list[str]
    seeds: list[int]
    restart_s: float
    pred_error: float
    arrivals: str
    notes: list[str]
    """What was left out or assumed, one sentence each."""
    past: ClusterProfile | None = None
    """What the cluster that the jobs come from was like, as far as the trace tells; its GPUs are those simulated, or
    more where more were held at once."""


@dataclass(frozen=True)
class FigureLine:
    """One figure of a policy over the seeds."""

    mean: float | None
    sd: float | None
    """The standard deviation over the seeds; None where there is only one seed."""
    is_best: bool
    """Whether no other policy has a better mean, and at least one has a worse mean."""


@dataclass(frozen=True)
class PolicyLine:
    """A policy in one block."""

    policy: str
    figures: dict[str, FigureLine]
    mean_s: float
    """Its mean completion time over all seeds."""
    above_best: float
    """How much longer `mean_s` is than the best policy's, as a share of the latter."""
    wins: int
    """The number of seeds in which no policy has a shorter mean completion time."""
    over_time: Sequence[ClusterUse]
    """The load over time, in the simulation of the first seed."""
    completion_cdf: list[tuple[float, float]]
    """(seconds, share of jobs that completed within them), all seeds together."""
    longest_waits: list[Waited]
    """The jobs that waited longest, over all seeds; the same job may be there for several."""
    comm_dimensions: dict[str, float]
    """The GPU-hours of exposed communication by dimension, of jobs with a layout: the mean over the seeds."""


@dataclass(frozen=True)
class PolicyComparison:
    """Policies on the same jobs."""

    load: float | None
    """The load asked for; None: jobs arrive as in the trace."""
    offered_load: float | None
    """The load that the simulations really had, as a mean over the seeds."""
    predictable: float | None
    policies: list[PolicyLine]

    @property
    def best(self) -> PolicyLine:
        """The policy with the shortest mean completion time."""
        return min(self.policies, key=lambda line: line.mean_s)

    @property
    def winners(self) -> list[str]:
        """The policies whose mean completion time is the shortest, or longer by too little to be named; empty where
        that is all of several."""
        first = [line.policy for line in sorted(self.policies, key=lambda line: line.mean_s)
                 if line.above_best < _SLIGHTLY]  # fmt: skip
        return [] if 1 < len(first) == len(self.policies) else first


@dataclass(frozen=True)
class SimulatedData:
    """The results of all simulations of one call."""

    question: SimulationQuestion
    blocks: list[PolicyComparison]
    cases: list[dict[str, Any]]
    """Each simulation, with its figures."""
    schema: int = field(default=SIMULATED_SCHEMA_VERSION)


def build(question: SimulationQuestion, results: Sequence[CaseResult]) -> SimulatedData:
    """Puts the results of one question side by side; those of a block stand together."""
    groups = groupby(results, key=lambda result: (result.case.load, result.case.predictable))
    blocks = [_block(load, predictable, list(found)) for (load, predictable), found in groups]
    if any((block.offered_load or 0.0) > 1 for block in blocks):
        question = replace(question, notes=[*question.notes, OVERLOADED])
    if starving := _starving(blocks):
        question = replace(question, notes=[*question.notes, starving])
    return SimulatedData(
        question,
        blocks,
        [{**asdict(result.case), "figures": asdict(result.summary)} for result in results],
    )


def _starving(blocks: Sequence[PolicyComparison]) -> str | None:
    """Which policies starve a few jobs, which a mean over all of them does not show."""
    lowest: dict[str, PolicyLine] = {}
    for line in (line for block in blocks for line in block.policies):
        jain = line.figures["jain"].mean
        if jain is not None and jain < _STARVED_JAIN and jain <= _jain(lowest.get(line.policy)):
            lowest[line.policy] = line
    if not lowest:
        return None
    named = ", ".join(f"{policy} (Jain's index {_jain(line):.2g}{_first(line)})" for policy, line in lowest.items())
    return f"a few jobs are slowed many times as much as the others, or starve: {named}"


def _jain(line: PolicyLine | None) -> float:
    mean = None if line is None else line.figures["jain"].mean
    return 1.0 if mean is None else mean


def _first(line: PolicyLine) -> str:
    """The longest wait."""
    if not line.longest_waits:
        return ""
    first = line.longest_waits[0]
    return f", job {first.job_id} waited {first.waited_s / 3600:,.0f} h"


def _longest(found: Sequence[CaseResult]) -> list[Waited]:
    """The longest waits of all, as many as are told of one."""
    most = max(len(result.longest_waits) for result in found)
    every = [waited for result in found for waited in result.longest_waits]
    return sorted(every, key=lambda waited: (-waited.waited_s, waited.job_id))[:most]


def _block(load: float | None, predictable: float | None, results: Sequence[CaseResult]) -> PolicyComparison:
    by_policy: dict[str, list[CaseResult]] = {}
    for result in results:
        by_policy.setdefault(result.case.policy, []).append(result)
    means = {policy: {name: _mean(found, name) for name in FIGURES} for policy, found in by_policy.items()}
    mean_s = {policy: statistics.fmean(map(_headline, found)) for policy, found in by_policy.items()}
    shortest_s = min(mean_s.values())
    offered = [result.offered_load for result in results if result.offered_load is not None]
    return PolicyComparison(
        load=load,
        offered_load=statistics.fmean(offered) if offered else None,
        predictable=predictable,
        policies=[
            PolicyLine(
                policy=policy,
                figures={name: _figure(name, policy, found, means) for name in FIGURES},
                mean_s=mean_s[policy],
                above_best=mean_s[policy] / shortest_s - 1,
                wins=_wins(policy, by_policy),
                over_time=found[0].over_time,
                completion_cdf=_pooled([result.completion_cdf for result in found]),
                longest_waits=_longest(found),
                comm_dimensions={
                    name: statistics.fmean(result.comm_dimensions.get(name, 0.0) for result in found)
                    for name in dict.fromkeys(name for result in found for name in result.comm_dimensions)
                },
            )
            for policy, found in by_policy.items()
        ],
    )


def _headline(result: CaseResult) -> float:
    return result.summary.completion_mean_s


def _known(found: Sequence[CaseResult], name: str) -> list[float]:
    return [value for result in found if (value := getattr(result.summary, name)) is not None]


def _mean(found: Sequence[CaseResult], name: str) -> float | None:
    values = _known(found, name)
    return statistics.fmean(values) if len(values) == len(found) else None


def _figure(
    name: str, policy: str, found: Sequence[CaseResult], means: Mapping[str, Mapping[str, float | None]]
) -> FigureLine:
    own = means[policy][name]
    every = [value for each in means.values() if (value := each[name]) is not None]
    if own is None:
        return FigureLine(None, None, False)
    best = min(every) if BETTER.get(name) == LESS else max(every)
    differ = not math.isclose(min(every), max(every), rel_tol=_SAME)
    return FigureLine(
        mean=own,
        sd=statistics.stdev(_known(found, name)) if len(found) > 1 else None,
        is_best=name in BETTER and differ and math.isclose(own, best, rel_tol=_SAME),
    )


def _wins(policy: str, by_policy: Mapping[str, Sequence[CaseResult]]) -> int:
    """Results of a policy stand in the order of the seeds."""
    shortest = [min(map(_headline, of_seed)) for of_seed in zip(*by_policy.values(), strict=True)]
    return sum(
        math.isclose(_headline(result), best, rel_tol=_SAME)
        for result, best in zip(by_policy[policy], shortest, strict=True)
    )


def _pooled(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """One distribution of several, each of which counts as much as the others."""
    added = []
    for curve in curves:
        before = 0.0
        for seconds, share in curve:
            added.append((seconds, (share - before) / len(curves)))
            before = share
    pooled, so_far = [], 0.0
    for seconds, more in sorted(added):
        so_far += more
        pooled.append((seconds, min(so_far, 1.0)))
    every = max(len(pooled) // _MOST_POINTS, 1)
    return [*pooled[:-1:every], pooled[-1]]


def assumed(setting: Setting, cases: Sequence[SimulationCase]) -> Iterator[str]:
    """The assumptions and omissions of the simulations, one sentence each."""
    others = [job for job in setting.jobs if job.max_gpus is None]
    if len(others) < len(setting.jobs):
        yield (
            "the length of such a job is in samples, which any batch between its bounds is taken to train as well;"
            " a policy that scales no jobs gives it what it asks for"
        )
    if others:
        who = "a job" if len(others) == len(setting.jobs) else "every other job"
        yield (
            f"{who} runs on as many GPUs as it asks for, all at once, with its own batch; it takes the time of its"
            " trace where they are as close together as can be, and elsewhere longer by measured penalties of"
            " placements, which are counted as communication"
        )
    if others and any(model is not None for model in setting.cluster.gpu_models):
        yield "GPU models tell which penalties count: on the best placement a job takes the time of its trace on each"
    if setting.restart_s:
        yield f"a job that moves or starts again makes no progress for {setting.restart_s:g} s"
    if setting.draws_arrivals:
        yield "jobs are submitted in a random order, with exponential gaps between them"
    shares = list(dict.fromkeys(case.predictable for case in cases))
    if shares == [None]:
        yield "policies that ask how long a job takes are told exactly, from its submission on"
    else:
        yield (
            "the length of a predictable job is told from its submission on, times exp(x), x normal"
            f" with standard deviation {setting.pred_error:g}; that of others never"
        )
    if _are_alike(setting, cases):
        yield "nothing here is drawn, so all seeds are alike: draw submissions with --arrivals poisson"


def _are_alike(setting: Setting, cases: Sequence[SimulationCase]) -> bool:
    forecast = any(case.predictable is not None and (setting.pred_error or 0 < case.predictable < 1) for case in cases)
    drawn = setting.draws_arrivals or forecast or any(depends_on_seed(case.policy) for case in cases)
    return not drawn and len({case.seed for case in cases}) > 1
