"""Runs cases, one after the other or on all cores; the results are the same either way."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from ddlprof.base.errors import DdlprofError, UserError
from ddlprof.extensions.cluster.jobs import Forecaster, Job, exactly, forecasts
from ddlprof.extensions.cluster.machines import Cluster
from ddlprof.extensions.cluster.policy import policy_factory
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.simulation.metrics import (
    comm_by_dimension,
    completion_cdf,
    job_rows,
    longest_waits,
    over_time,
    summary,
)
from ddlprof.extensions.cluster.speeds import Speeds
from ddlprof.extensions.cluster.sweep.cases import CaseResult, SimulationCase
from ddlprof.extensions.cluster.trace import offered_load, poisson, rescaled

_EVERY_S = 0.25
"""The seconds between two reports of progress."""


@dataclass(frozen=True)
class Setting:
    """The settings that all cases share."""

    jobs: Sequence[Job]
    cluster: Cluster
    speeds: Speeds
    restart_s: float = 30.0
    """The seconds that a job loses when it moves or starts again."""
    pred_error: float = 0.0
    """The standard deviation of the logarithm of forecasts."""
    draws_arrivals: bool = False
    """Whether the seed draws when jobs are submitted."""
    keeps_jobs: bool = False
    """Whether each job's outcome is wanted."""


def run_cases(
    setting: Setting,
    cases: Sequence[SimulationCase],
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[CaseResult]:
    """Yields the results in the order of the cases.

    `workers` is the number of processes (-1: one for each core; None: as `joblib.parallel_config` says). Backends
    without generators, such as Ray's, return all results at the end. `progress` is called with the number of jobs of
    all cases that have ended, and the number of all.

    Raises `UserError` as `run_case` does, and if a process dies.
    """
    total = len(cases) * len(setting.jobs)
    if workers == 1:
        for number, case in enumerate(cases):
            yield run_case(setting, case, partial(_after, number * len(setting.jobs), total, progress))
        return
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    return_as = "generator" if get_active_backend()[0].supports_return_generator else "list"
    with SweepProgress(len(cases), lambda ended: progress(ended, total)) as reports:
        try:
            results = Parallel(n_jobs=workers, return_as=return_as, batch_size=1)(
                delayed(run_case)(setting, case, reports.of(number)) for number, case in enumerate(cases)
            )
            for number, result in enumerate(results):
                reports.ended(number, len(setting.jobs))
                yield result
        except BrokenProcessPool:
            raise UserError("a process that simulates died, perhaps for lack of memory: use fewer --workers") from None


def _after(before: int, total: int, progress: Callable[[int, int], None], ended: int) -> None:
    progress(before + ended, total)


def run_case(
    setting: Setting, case: SimulationCase, progress: Callable[[int], None] = lambda ended: None
) -> CaseResult:
    """Runs one simulation. Raises `UserError` for a load that is not possible, and for a policy that fails."""
    jobs: Sequence[Job] = poisson(setting.jobs, case.seed) if setting.draws_arrivals else setting.jobs
    if case.load is None and setting.draws_arrivals and offered_load(setting.jobs, setting.cluster) is None:
        raise UserError("submissions cannot be drawn where the trace has all at once, unless a load is given")
    if case.load is not None:
        jobs = rescaled(jobs, case.load, setting.cluster)
    made = policy_factory(case.policy, case.seed)()
    try:
        simulated = simulate(
            jobs,
            setting.cluster,
            made,
            setting.speeds,
            restart_s=setting.restart_s,
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
        longest_waits=longest_waits(simulated),
        comm_dimensions=comm_by_dimension(simulated),
        jobs=job_rows(simulated, setting.cluster.gpus) if setting.keeps_jobs else (),
    )


def _expect(setting: Setting, case: SimulationCase) -> Forecaster:
    if case.predictable is None:
        return exactly
    return forecasts(case.predictable, setting.pred_error, case.seed)


@dataclass
class CaseProgress:
    """Reports how many jobs of one case have ended, from the process in which the case runs."""

    path: Path
    written_s: float = 0.0

    def __call__(self, ended: int) -> None:
        """Writes the number, at most once in `_EVERY_S`."""
        now_s = time.monotonic()
        if now_s - self.written_s >= _EVERY_S:
            self.written_s = now_s
            with contextlib.suppress(OSError):
                self.path.write_text(str(ended), encoding="ascii")


class SweepProgress:
    """Reports the progress of cases in other processes. Within its context, a thread calls `progress` with their sum.

    Each case writes a number into a file of its own, as joblib's backends share no queues. A worker on another machine
    cannot write it; its cases count when they have ended.
    """

    def __init__(self, cases: int, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._folder = tempfile.TemporaryDirectory(prefix="ddlprof-", ignore_cleanup_errors=True)
        self._paths = [Path(self._folder.name) / str(number) for number in range(cases)]
        self._ended = [0] * cases
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._add, daemon=True)

    def of(self, number: int) -> CaseProgress:
        """The object by which the case reports its progress."""
        return CaseProgress(self._paths[number])

    def ended(self, number: int, jobs: int) -> None:
        """Notes that all jobs of a case have ended."""
        self._ended[number] = jobs

    def __enter__(self) -> SweepProgress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()
        self._folder.cleanup()

    def _add(self) -> None:
        while not self._left.wait(_EVERY_S):
            self._add_once()

    def _add_once(self) -> None:
        self._progress(sum(map(max, self._ended, map(_number, self._paths))))


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not yet there, or just being written
        return 0
