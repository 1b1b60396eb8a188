"""`ddlprof plan`: how one job is trained fastest on GPUs that are not alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.cli.options import JOB_HELP, LearnedFile
from ddlprof.cli.output import Out, format_option, wanted
from ddlprof.cli.panels import job_option, machines_option

FORMATS = ("table", "json", "trace", "plan")


def plan(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    machines: Annotated[
        Path, machines_option(metavar="FILE", help="The machines, their GPUs and links, as YAML or JSON.")
    ],
    global_batch: Annotated[
        int | None, job_option(metavar="N", min=1, help="Samples of one update over all GPUs [as in RUN].")
    ] = None,
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
    destinations.write({"table": text.render, "json": json.as_json, "trace": trace.render, "plan": json.as_plan}, found)
