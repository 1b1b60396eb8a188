"""One job on GPUs that are not alike: `plan_for` gives what `ddlprof plan` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.unequal_plan import UnequalPlan


def plan_for(
    runs: Sequence[str],
    machines: Path,
    global_batch: int | None = None,
    *,
    learned: Path | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> UnequalPlan:
    """The fastest way to train the job of the runs on the machines that the file names, beside simple ones.

    `global_batch` is in place of the run's samples of an update; `learned` is a file of `ddlprof learn`. Raises
    UserError, PredictionError or CatalogError for what cannot be read, is not known or does not fit.
    """
    from ddlprof.extensions.hetero.devices import read_devices
    from ddlprof.extensions.hetero.predicted import predicted_problem, staged_problem
    from ddlprof.extensions.hetero.search import make_plan
    from ddlprof.extensions.hetero.stages.search import make_staged_plan
    from ddlprof.extensions.hetero.unequal_plan import UnequalPlan
    from ddlprof.planning.learned import load_job_with

    devices = read_devices(machines)
    job = load_job_with(learned, runs)
    problem, notes = predicted_problem(job.workload, devices, global_batch, job.learned)
    layered, more = staged_problem(job.workload, problem)
    staged = make_staged_plan(layered) if layered is not None else None
    try:
        split = make_plan(problem, advance=advance)
    except UserError as error:
        if staged is None:
            reason = more[0] if more else "nor does it with its layers divided over them"
            raise UserError(f"{error}; {reason}") from None
        split = None
    return UnequalPlan(job.name, problem, split, staged, [*notes, *more])
