"""`ddlprof predict`: the step of a job on one target, or on several side by side."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli import options
from ddlprof.cli.options import JOB_HELP, names_in, whole_numbers
from ddlprof.cli.output import Out, format_option, wanted
from ddlprof.cli.panels import job_option, machines_option

FORMATS = ("table", "json")
MOST_TARGETS = 1000
MOST_NODES = 10_000


def predict(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    instance: Annotated[
        list[str] | None, machines_option(metavar="TYPE,...", help="Instance types of the catalogue, side by side.")
    ] = None,
    gpu: Annotated[
        list[str] | None, machines_option(metavar="MODEL,...", help="GPUs outside a cloud, such as 'RTX 3090', too.")
    ] = None,
    placement: Annotated[
        str | None,
        machines_option(metavar="N,...", help="GPUs used on each machine: 4,4 means two machines with four each [1]."),
    ] = None,
    nodes: Annotated[
        int | None,
        machines_option(metavar="N", min=1, max=MOST_NODES, help="In place of --placement: all GPUs of N machines."),
    ] = None,
    batch: Annotated[
        int | None, job_option(metavar="B", min=1, help="Samples per GPU and forward pass [as in RUN].")
    ] = None,
    precision: options.Precisions = None,
    strategy: options.Strategy = None,
    optimizer: options.Optimizer = None,
    grad_accum: options.GradAccum = None,
    checkpointing: options.Checkpointing = None,
    compiled: options.Compiled = None,
    channels_last: options.ChannelsLast = None,
    lora: options.Lora = None,
    qlora: options.Qlora = None,
    other_job: options.OtherJobs = None,
    learned: options.LearnedFile = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:
    """Predict the step time of a job on one target, class by class, with an 80 % interval, or on several side by side.

    What is asked for in place of the run's own settings is shown beside the step with those.
    """
    from ddlprof.planning.choose import placement_on, predictions
    from ddlprof.planning.learning import load_job_with
    from ddlprof.report.plans import prediction

    places, used = wanted(out, format, FORMATS), whole_numbers(placement or "1", "--placement")
    if placement and nodes:
        raise UserError("give --placement or --nodes, not both")
    if nodes and gpu:
        raise UserError("--nodes takes all GPUs of an --instance: with --gpu, give --placement")
    machines = [("instance_type", name) for name in names_in(",".join(instance or []))]
    machines += [("gpu_model", name) for name in names_in(",".join(gpu or []))]
    settings = [
        options.settings_of(name, strategy, optimizer, grad_accum, checkpointing, compiled, channels_last, lora, qlora)
        for name in names_in(precision or "") or (None,)
    ]
    questions = [(machine, each) for machine in dict.fromkeys(machines) for each in dict.fromkeys(settings)]
    if not 0 < len(questions) <= MOST_TARGETS:
        raise UserError(f"name 1 to {MOST_TARGETS} targets, by --instance TYPE, or --gpu MODEL outside of a cloud")
    job = load_job_with(learned, run, (batch,) if batch else (), other_job or ())
    found = predictions(job, batch, placement_on(used, nodes), questions)
    renderers = {"table": prediction.render, "json": prediction.as_json}
    places.write({name: partial(render, job.workload.name) for name, render in renderers.items()}, found)
