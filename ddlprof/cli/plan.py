"""`ddlprof plan`: how one job is trained fastest on GPUs that are not alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import DdlprofError
from ddlprof.cli.options import JOB_HELP, LearnedFile
from ddlprof.cli.output import Out, format_option, wanted

if TYPE_CHECKING:
    from ddlprof.hetero.check.run import Check
    from ddlprof.hetero.problem import Problem
    from ddlprof.hetero.search import Plan


FORMATS = ("table", "json", "trace", "plan")
_Format = Annotated[
    str | None,
    format_option(FORMATS, besides="; trace: the planned step, for Perfetto; plan: for ddlprof.hetero.apply"),
]


def plan(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    machines: Annotated[
        Path, typer.Option(metavar="FILE", help="The machines, their GPUs and links, as YAML or JSON.")
    ],
    global_batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples of one update over all GPUs [as in RUN].")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also train a small net with these groups on two processes of this machine, one of them made slow, and"
            " compare with what is predicted for them; takes a minute.",
        ),
    ] = False,
    learned: LearnedFile = None,
    out: Out = None,
    format: _Format = None,
) -> None:
    """Plan a job on unequal GPUs: which to use, how to split the batch, and how to exchange gradients.

    Beside the four plans that need no search: split evenly or by speed, all-reduce or parameter servers.
    """
    from ddlprof.hetero.devices import read_devices
    from ddlprof.hetero.predicted import predicted_problem
    from ddlprof.hetero.search import make_plan
    from ddlprof.hetero.simulation import simulate
    from ddlprof.planning.learning import load_job_with
    from ddlprof.report.hetero import json, text, trace

    places = wanted(out, format, FORMATS)
    devices = read_devices(machines)
    job = load_job_with(learned, run)
    problem, notes = predicted_problem(job.workload, devices, global_batch, job.learned)
    found = make_plan(problem)
    interval = _interval(found)
    checked, failure = _checked(found.problem) if check else (None, None)

    def as_table(plan: Plan) -> str:
        shown = text.render(job.name, plan, notes, interval)
        return shown + text.render_check(checked) if checked else shown

    def as_trace(plan: Plan) -> str:
        return trace.render(job.name, problem, simulate(problem, plan.best.strategy, traced=True))

    places.write(
        {
            "table": as_table,
            "json": lambda plan: json.as_json(job.name, plan, notes, checked),
            "trace": as_trace,
            "plan": lambda plan: json.as_plan(job.name, plan),
        },
        found,
    )
    if failure:
        raise failure


def _checked(problem: Problem) -> tuple[Check | None, DdlprofError | None]:
    """The result of the check, or the reason why there is none: the plan is shown in both cases."""
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.cli.screen import waiting
    from ddlprof.hetero.check.run import check

    try:
        require_torch()
        with waiting("checking"):
            return check(problem), None
    except DdlprofError as error:
        return None, error


def _interval(plan: Plan) -> tuple[float, float] | None:
    """The seconds of the step at the ends of the 80 % interval of the device that computes longest."""
    from ddlprof.hetero.predicted import PredictedTimes

    step, times = plan.best.step, plan.problem.times
    if step is None or not isinstance(times, PredictedTimes):
        return None
    low, high = times.interval(step.slowest, plan.best.strategy.samples[step.slowest])
    return step.exposed_s + low * step.compute_s, step.exposed_s + high * step.compute_s
