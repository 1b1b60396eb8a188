"""`ddlprof plan`: how one job is trained fastest on GPUs that are not alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.cli.described_job import JOB_HELP

if TYPE_CHECKING:
    from ddlprof.hetero.check.run import Check
    from ddlprof.hetero.problem import Problem
    from ddlprof.hetero.search import Plan


def plan(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    cluster: Annotated[Path, typer.Option(metavar="FILE", help="The machines, their GPUs and links, as YAML or JSON.")],
    batch: Annotated[
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
    trace_out: Annotated[
        Path | None, typer.Option("--trace-out", metavar="FILE", help="Write the planned step for Perfetto to FILE.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all plans to FILE as JSON, too.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PLAN", help="Write the plan to PLAN, for ddlprof.hetero.apply."),
    ] = None,
) -> None:
    """Plan a job on unequal GPUs: which to use, how to split the batch, and how to exchange gradients.

    Beside the four plans that need no search: split evenly or by speed, all-reduce or parameter servers.
    """
    from ddlprof.cli.described_job import load_job, one_line
    from ddlprof.cli.files import write_whole
    from ddlprof.cli.screen import show
    from ddlprof.hetero.devices import read_devices
    from ddlprof.hetero.predicted import predicted_problem
    from ddlprof.hetero.search import make_plan
    from ddlprof.hetero.simulation import simulate
    from ddlprof.report.hetero import json as files
    from ddlprof.report.hetero import text as table
    from ddlprof.report.hetero import trace

    devices = read_devices(cluster)
    job = load_job(run)
    with one_line():
        problem, notes = predicted_problem(job.workload, devices, batch)
        found = make_plan(problem)
        interval = _interval(found)
    if output:
        write_whole(output, files.as_plan(job.name, found))
    if json:
        write_whole(json, files.as_json(job.name, found, notes))
    if trace_out:
        write_whole(trace_out, trace.render(job.name, problem, simulate(problem, found.best.strategy, traced=True)))
    show(table.render(job.name, found, notes, interval))
    if check:  # last: it takes a minute, and nothing is lost where it fails
        checked = _checked(found.problem)
        if json:
            write_whole(json, files.as_json(job.name, found, notes, checked))
        show(table.render_check(checked))


def _checked(problem: Problem) -> Check:
    from ddlprof.cli.torch_needed import require_torch
    from ddlprof.hetero.check.run import check

    require_torch()
    return check(problem)


def _interval(plan: Plan) -> tuple[float, float] | None:
    """The seconds of the step at the ends of the 80 % interval of the device that computes longest."""
    from ddlprof.hetero.predicted import PredictedTimes

    step, times = plan.best.step, plan.problem.times
    if step is None or not isinstance(times, PredictedTimes):
        return None
    low, high = times.interval(step.slowest, plan.best.strategy.samples[step.slowest])
    return step.exposed_s + low * step.compute_s, step.exposed_s + high * step.compute_s
