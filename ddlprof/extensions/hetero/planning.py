"""One job on GPUs that are not alike: `plan_for` gives what `ddlprof plan` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.search import SplitPlan
    from ddlprof.extensions.hetero.simulation import SimulatedStep


@dataclass(frozen=True)
class UnequalPlan:
    """The plan of a job, and what it rests on."""

    job: str
    plan: SplitPlan
    notes: list[str]
    """What the predictions rest on and what was assumed, one sentence each."""

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The step at the ends of the 80 % interval of the device that computes longest; None: it has none."""
        from ddlprof.extensions.hetero.predicted import PredictedTimes

        step, times = self.plan.best.step, self.plan.problem.times
        if step is None or not isinstance(times, PredictedTimes):
            return None
        low, high = times.interval(step.slowest, self.plan.best.strategy.samples[step.slowest])
        return step.exposed_s + low * step.compute_s, step.exposed_s + high * step.compute_s

    def traced_step(self) -> SimulatedStep:
        """The planned step with what each device and link does, and when."""
        from ddlprof.extensions.hetero.simulation import simulate

        return simulate(self.plan.problem, self.plan.best.strategy, traced=True)


def plan_for(
    runs: Sequence[str], machines: Path, global_batch: int | None = None, *, learned: Path | None = None
) -> UnequalPlan:
    """The fastest way to train the job of the runs on the machines that the file names, beside four simple ones.

    `global_batch` is in place of the run's samples of an update; `learned` is a file of `ddlprof learn`. Raises
    UserError, PredictionError or CatalogError for what cannot be read, is not known or does not fit.
    """
    from ddlprof.extensions.hetero.devices import read_devices
    from ddlprof.extensions.hetero.predicted import predicted_problem
    from ddlprof.extensions.hetero.search import make_plan
    from ddlprof.planning.learned import load_job_with

    devices = read_devices(machines)
    job = load_job_with(learned, runs)
    problem, notes = predicted_problem(job.workload, devices, global_batch, job.learned)
    return UnequalPlan(job.name, make_plan(problem), notes)
