"""`ddlprof predict`: the step of a job on one target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.cli.job import JOB_HELP


def predict(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=JOB_HELP)],
    instance: Annotated[str, typer.Option(metavar="TYPE", help="Instance type of the catalogue.")],
    placement: Annotated[
        str, typer.Option(metavar="N,...", help="GPUs used on each machine: 4,4 means two machines with four each.")
    ],
    batch: Annotated[
        int | None, typer.Option(metavar="B", min=1, help="Samples per GPU and forward pass [as in RUN].")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the prediction to FILE as JSON, too.")
    ] = None,
) -> None:
    """Predict the step time of a job on one target, class by class, with an 80 % interval."""
    from ddlprof.cli.job import load_job, one_line, whole_numbers, write
    from ddlprof.cli.screen import show
    from ddlprof.report.plans import prediction
    from recommender.plans.candidates import describe_job
    from recommender.predictor import Predictor
    from recommender.target import Target

    nodes = whole_numbers(placement, "--placement")
    batches = (batch,) if batch else ()
    job = load_job(run, batches)
    with one_line():
        described = describe_job(job.workload, batches, keep_global_batch=False)
        target = Target(
            instance_type=instance,
            placement=nodes,
            batch_per_gpu=described.batches_per_gpu[0],
            grad_accum=described.grad_accum,
        )
        estimate = Predictor(job.workload).predict(target)
    if json:
        write(json, prediction.as_json(job.workload.name, target, estimate))
    show(prediction.render(job.workload.name, target, estimate))
