"""`ddlprof plan`: how one job is trained fastest on GPUs that are not alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import DdlprofError
from ddlprof.cli.options import JOB_HELP, LearnedFile
from ddlprof.cli.output import Out, format_option, wanted
from ddlprof.cli.panels import job_option, machines_option, panel

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.check.run import CheckResult
    from ddlprof.extensions.hetero.problem import Problem
    from ddlprof.extensions.hetero.unequal_plan import UnequalPlan


FORMATS = ("table", "json", "trace", "plan")
_check_option = panel("Check")


def plan(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    machines: Annotated[
        Path, machines_option(metavar="FILE", help="The machines, their GPUs and links, as YAML or JSON.")
    ],
    global_batch: Annotated[
        int | None, job_option(metavar="N", min=1, help="Samples of one update over all GPUs [as in RUN].")
    ] = None,
    check: Annotated[
        bool,
        _check_option(
            "--check",
            help="Also train a small net with these groups on two processes of this machine, one of them made slow, and"
            " compare with what is predicted for them; takes a minute.",
        ),
    ] = False,
    learned: LearnedFile = None,
    out: Out = None,
    format: Annotated[
        str | None, format_option(FORMATS, besides="; trace: the planned step, for Perfetto; plan: for a training")
    ] = None,
) -> None:
    """Plan a job on unequal GPUs: which to use, how to divide the batch or the layers, how to exchange gradients.

    Beside the plans that need no search: the batch split evenly or by speed, with all-reduce or parameter servers; and
    as many layers on every GPU.
    """
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.hetero.planning import plan_for
    from ddlprof.extensions.hetero.report import json, text, trace

    destinations = wanted(out, format, FORMATS)
    with progress("planning") as advance:
        found = plan_for(run, machines, global_batch, learned=learned, advance=advance)
    checked, failure = _checked(found.problem) if check else (None, None)

    def as_table(found: UnequalPlan) -> str:
        shown = text.render(found)
        return shown + text.render_check(checked) if checked else shown

    destinations.write(
        {
            "table": as_table,
            "json": lambda found: json.as_json(found, checked),
            "trace": trace.render,
            "plan": json.as_plan,
        },
        found,
    )
    if failure:
        raise failure


def _checked(problem: Problem) -> tuple[CheckResult | None, DdlprofError | None]:
    """The result of the check, or the reason why there is none: the plan is shown in both cases."""
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.hetero.check.run import check

    try:
        require_torch()
        with progress("checking", at_once=True):
            return check(problem), None
    except DdlprofError as error:
        return None, error
