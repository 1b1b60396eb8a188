"""`ddlprof elastic`: how many GPUs and which batch each of several jobs should get now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ddlprof.cli.options import LearnedFile
from ddlprof.cli.output import Out, format_option, wanted
from ddlprof.cli.panels import machines_option, panel

FORMATS = ("table", "json", "csv")
_jobs_option, _simulation_option = panel("Jobs"), panel("Simulation")


def elastic(
    jobs: Annotated[Path, _jobs_option(metavar="FILE", help="Jobs, as CSV or JSON: see docs/elastic.md.")],
    gpus: Annotated[int, machines_option(metavar="N", min=1, max=100_000, help="GPUs to share out.")],
    gpus_per_node: Annotated[
        int | None, machines_option(metavar="N", min=1, help="GPUs of each machine [of the type, else all in one].")
    ] = None,
    instance: Annotated[
        str | None, machines_option(metavar="TYPE", help="Type of the machines [as the jobs were measured on].")
    ] = None,
    gpu: Annotated[
        str | None, machines_option(metavar="MODEL", help="GPU of the machines, such as 'RTX 3090', outside a cloud.")
    ] = None,
    stat_eff: Annotated[
        bool, _jobs_option("--stat-eff", help="Charge large batches for the noise of the gradients (noise_scale).")
    ] = False,
    simulate: Annotated[
        bool, _simulation_option("--simulate", help="Run the jobs to their end in a simulation, beside fixed batches.")
    ] = False,
    seed: Annotated[int, _simulation_option(metavar="N", min=0, help="Of the batches that fixed-random draws.")] = 0,
    learned: LearnedFile = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:
    """Share GPUs out to jobs that can run on more or fewer, and choose their batches, so that the sum of their
    speed-ups is as large as can be.
    """
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.cluster.elastic_advice import policy_outcomes, shares
    from ddlprof.extensions.cluster.planning.elastic import noise_scales, read_question, require_samples
    from ddlprof.extensions.cluster.report.elastic import TABLE, ElasticData, as_json, as_table
    from ddlprof.planning.learned import learned_for

    destinations = wanted(out, format, FORMATS)
    question = read_question(jobs, gpus, gpus_per_node, instance, gpu, learned_for(learned))
    noise = noise_scales(question.lines, stat_eff)
    if simulate:
        require_samples(question.lines)
    with progress("predicting") as advance:
        found = shares(question.jobs, question.cluster, question.speeds, noise, advance)
    over_time = policy_outcomes(question.jobs, question.cluster, question.speeds, noise, seed) if simulate else []
    uncharged = [line.name for line in question.lines if line.name not in noise] if stat_eff else []
    notes = [*question.notes, *(f"{name} has no noise_scale: its batches are not charged for" for name in uncharged)]
    data = ElasticData(gpus, question.words, found, stat_eff, over_time, notes)
    destinations.write({"table": as_table, "json": as_json, "csv": lambda data: TABLE.csv(data.shares)}, data)
