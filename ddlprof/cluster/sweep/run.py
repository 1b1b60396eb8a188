"""Runs cases, one after the other or on all cores; what comes out is the same either way."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ddlprof.base.errors import DdlprofError, UserError
from ddlprof.cluster.forecasts import forecasts
from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Cluster
from ddlprof.cluster.registry import policy
from ddlprof.cluster.simulation.core import Costs, Expect, exactly, simulate
from ddlprof.cluster.simulation.metrics import completion_cdf, job_rows, over_time, summary
from ddlprof.cluster.speeds import Speeds
from ddlprof.cluster.sweep.arrivals import poisson
from ddlprof.cluster.sweep.cases import Case
from ddlprof.cluster.sweep.progress import Progress
from ddlprof.cluster.sweep.result import CaseResult
from ddlprof.cluster.trace import offered_load, rescaled


@dataclass(frozen=True)
class Setting:
    """What all cases have in common."""

    jobs: Sequence[Job]
    cluster: Cluster
    speeds: Speeds
    costs: Costs = field(default_factory=Costs)
    pred_error: float = 0.0
    """The standard deviation of the logarithm of forecasts."""
    draws_arrivals: bool = False
    """Whether the seed draws when jobs are submitted."""
    keeps_jobs: bool = False
    """Whether each job's outcome is wanted."""


def run_cases(
    setting: Setting,
    cases: Sequence[Case],
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[CaseResult]:
    """The results in the order of the cases. `workers`: processes (-1: one a core); None: as `joblib.parallel_config`
    says, which also reaches Dask and Ray; backends without generators, such as Ray's, hand over all results at the end.
    `progress` is told how many jobs of all cases have ended, and how many there are.

    Raises `UserError` as `run_case` does, where a process dies, and for more than one worker without joblib.
    """
    total = len(cases) * len(setting.jobs)
    if workers == 1:
        for number, case in enumerate(cases):
            yield run_case(setting, case, partial(_after, number * len(setting.jobs), total, progress))
        return
    from concurrent.futures.process import BrokenProcessPool

    try:
        from joblib import Parallel, delayed
        from joblib.parallel import get_active_backend
    except ImportError:
        raise UserError(
            "simulating in several processes needs joblib: pip install 'ddlprof[cluster]', or ask for one worker"
        ) from None

    return_as = "generator" if get_active_backend()[0].supports_return_generator else "list"
    with Progress(len(cases), lambda ended: progress(ended, total)) as reports:
        try:
            results = Parallel(n_jobs=workers, return_as=return_as, batch_size=1)(
                delayed(run_case)(setting, case, reports.by(number)) for number, case in enumerate(cases)
            )
            for number, result in enumerate(results):
                reports.ended(number, len(setting.jobs))
                yield result
        except BrokenProcessPool:
            raise UserError("a process that simulates died, perhaps for lack of memory: use fewer --workers") from None


def _after(before: int, total: int, progress: Callable[[int, int], None], ended: int) -> None:
    progress(before + ended, total)


def run_case(setting: Setting, case: Case, progress: Callable[[int], None] = lambda ended: None) -> CaseResult:
    """One simulation. Raises `UserError` for a load that cannot be made, and for a policy that fails."""
    jobs: Sequence[Job] = poisson(setting.jobs, case.seed) if setting.draws_arrivals else setting.jobs
    if case.load is None and setting.draws_arrivals and offered_load(setting.jobs, setting.cluster) is None:
        raise UserError("submissions cannot be drawn where the trace has all at once, unless a load is given")
    if case.load is not None:
        jobs = rescaled(jobs, case.load, setting.cluster)
    made = policy(case.policy, case.seed)()
    try:
        simulated = simulate(
            jobs,
            setting.cluster,
            made,
            setting.speeds,
            costs=setting.costs,
            expect=_expect(setting, case),
            progress=progress,
        )
    except DdlprofError as error:
        raise UserError(f"{case.policy}: {error}") from None
    except Exception as error:  # a policy may be the user's own
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{case.policy} failed: {type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        ) from None
    return CaseResult(
        case=case,
        offered_load=offered_load(jobs, setting.cluster),
        summary=summary(simulated, setting.cluster.gpus),
        over_time=over_time(simulated),
        completion_cdf=completion_cdf(simulated),
        jobs=job_rows(simulated, setting.cluster.gpus) if setting.keeps_jobs else (),
    )


def _expect(setting: Setting, case: Case) -> Expect:
    if case.predictable is None:
        return exactly
    return forecasts(case.predictable, setting.pred_error, case.seed)
