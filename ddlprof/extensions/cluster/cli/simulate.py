"""`ddlprof cluster simulate`: a trace of jobs on a cluster under several policies, side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError, refusing
from ddlprof.base.files import replace_whole
from ddlprof.base.units import count
from ddlprof.cli.options import LearnedFileInShortHelp, names_in
from ddlprof.cli.output import Out, Wanted, format_option, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlprof.extensions.cluster.jobs import Job
    from ddlprof.extensions.cluster.machines import Cluster
    from ddlprof.extensions.cluster.report.data import SimulatedData, SimulationQuestion
    from ddlprof.extensions.cluster.speeds import Speeds
    from ddlprof.extensions.cluster.sweep.cases import CaseResult, SimulationCase
    from ddlprof.extensions.cluster.sweep.run import Setting
    from ddlprof.extensions.cluster.trace import Trace

FORMATS = ("table", "json", "html", "csv")
_FOLDERS = ("csv",)
_MOST_CASES = 100_000
_QUICK = 4000
"""So many jobs, over all cases, are simulated faster than other processes start."""
_LOWEST_LOAD, _HIGHEST_LOAD = 1e-3, 1e3
_MOST_ERROR = 10.0
_LONGEST_RESTART_S = 1e6


class TooLarge(str, Enum):
    """The treatment of jobs that ask for more GPUs than the cluster has."""

    drop = "drop"
    cap = "cap"


class Arrivals(str, Enum):
    """The source of the submission times."""

    trace = "trace"
    poisson = "poisson"


_Cluster = Annotated[
    str,
    typer.Option(
        metavar="SHAPE", help="[RACKSx]MACHINESxGPUS[:MODEL],...: 8x8, 2x4x8 (two racks of four machines), 8x8:V100."
    ),
]
_Policy = Annotated[
    str,
    typer.Option(
        metavar="P,...",
        help="Policies, or your own as MODULE:CLASS; parameters behind semicolons: 'fifo,dally;lease_s=600'.",
    ),
]
_Seed = Annotated[str, typer.Option(metavar="N,...", help="Seeds of whatever is drawn: 0, 0,7 or 0-4.")]
_Load = Annotated[
    str | None,
    typer.Option(metavar="X,...", help="Move submissions so that so much GPU-time is asked for; 1: all there is."),
]
_Arrivals = Annotated[
    Arrivals, typer.Option(help="poisson: submit the jobs in a random order, at random times, by the seed.")
]
_Predictable = Annotated[
    str | None,
    typer.Option(metavar="SHARE,...", help="Share of jobs whose length is forecast as they run [all known at once]."),
]
_PredError = Annotated[
    float,
    typer.Option(metavar="SD", help="Standard deviation of the logarithm of forecasts; 0.25: about 25 %."),
]
_Restart = Annotated[float, typer.Option(metavar="S", help="Seconds that a job loses when it moves or starts again.")]
_TooLarge = Annotated[
    TooLarge | None,
    typer.Option(help="Jobs that ask for more GPUs than there are: leave them out, or give them all [an error]."),
]
_JobsLimit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N jobs.")]
_Penalties = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What a spread placement costs, in place of the shipped table.")
]
_Models = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Models of the trace with their runs, as for ddlprof elastic: may be scaled."),
]
_Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes at the same time [one a core].")]


def simulate(
    trace: Annotated[
        str, typer.Option(metavar="FILE[:NAME]", help="Jobs, as a CSV file; NAME picks one of several traces in it.")
    ],
    cluster: _Cluster,
    policy: _Policy,
    seed: _Seed = "0",
    load: _Load = None,
    arrivals: _Arrivals = Arrivals.trace,
    predictable: _Predictable = None,
    pred_error: _PredError = 0.0,
    restart: _Restart = 30.0,
    too_large: _TooLarge = None,
    jobs_limit: _JobsLimit = None,
    penalties: _Penalties = None,
    models: _Models = None,
    learned: LearnedFileInShortHelp = None,
    workers: _Workers = None,
    out: Out = None,
    format: Annotated[
        str | None, format_option(FORMATS, _FOLDERS, "; csv: summary.csv, jobs.csv and use.csv in -o DIR/")
    ] = None,
) -> None:
    """Simulate a trace of jobs on a cluster under several policies, and compare what comes of it.

    Every combination of policy, seed, load and share of predictable jobs is one simulation; they run on all cores.
    """
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.cluster.machines import parse_cluster, with_catalogue_names
    from ddlprof.extensions.cluster.planning.models import with_known_models
    from ddlprof.extensions.cluster.report.data import build
    from ddlprof.extensions.cluster.sweep.run import Setting, run_cases

    asked = _cases(policy, seed, load, predictable or ("1" if pred_error else None))
    _check("--pred-error", pred_error, _MOST_ERROR)
    _check("--restart", restart, _LONGEST_RESTART_S)
    destinations = wanted(out, format, FORMATS, _FOLDERS)
    shape = with_catalogue_names(parse_cluster(cluster))
    read, jobs, left_out = _jobs(trace, shape, jobs_limit, too_large)
    speeds = _speeds(shape, penalties)
    if models is not None:
        jobs, speeds, scaled = with_known_models(models, jobs, shape, speeds, learned)
        left_out.append(scaled)
    setting = Setting(
        jobs, shape, speeds, restart, pred_error,
        draws_arrivals=arrivals is Arrivals.poisson,
        keeps_jobs=destinations.path_of("csv") is not None,
    )  # fmt: skip
    with progress("simulating") as advance, _job_file(destinations.path_of("csv")) as without_jobs:
        processes = workers or (1 if len(jobs) * len(asked) <= _QUICK else -1)  # -1 is one on each core
        results = [without_jobs(result) for result in run_cases(setting, asked, processes, advance)]
    question = _question(read, cluster, arrivals.value, setting, asked, left_out)
    _report(build(question, results), results, destinations)


def _check(option: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        raise UserError(f"{option} {value:g}: give a number from 0 to {most:,.0f}")


def _cases(policy: str, seed: str, load: str | None, predictable: str | None) -> list[SimulationCase]:
    """The simulations asked for. Raises UserError for an unknown policy, and for too many simulations."""
    import os
    import sys

    from ddlprof.extensions.cluster.policy import policy_factory
    from ddlprof.extensions.cluster.sweep.cases import cases

    policies = names(policy)
    if any(":" in each for each in policies):
        sys.path.append(os.getcwd())  # for the user's policies; last, so that no file there hides a module
    for each in policies:
        policy_factory(each)
    if not policies:
        raise UserError("--policy: give at least one, as in fifo,srtf")
    loads = [None] if load is None else numbers(load, "--load", _LOWEST_LOAD, _HIGHEST_LOAD)
    shares = [None] if predictable is None else numbers(predictable, "--predictable", 0, 1)
    drawn = seeds(seed)
    number = len(policies) * len(loads) * len(shares) * len(drawn)
    if number > _MOST_CASES:
        raise UserError(f"{number:,} simulations are asked for, more than {_MOST_CASES:,}: ask for fewer seeds")
    return cases(policies, drawn, loads, shares)


def _jobs(
    trace: str, cluster: Cluster, limit: int | None, too_large: TooLarge | None
) -> tuple[Trace, list[Job], list[str]]:
    """The trace, the simulated jobs, and a sentence for each way in which they differ from the file."""
    from ddlprof.extensions.cluster.trace import fitted, load_trace, split_source

    read = load_trace(*split_source(trace))
    first = sorted(read.jobs, key=lambda job: job.submit_s)[:limit]
    jobs, changed = fitted(first, cluster, None if too_large is None else too_large.value)
    notes = read.notes()
    if len(first) < len(read.jobs):
        notes.append(f"only the first {len(first):,} of {len(read.jobs):,} jobs")
    if changed:
        what = "left out" if too_large is TooLarge.drop else "given all of them, and as much more time"
        notes.append(f"{count(changed, 'job')} asked for more GPUs than there are: {what}")
    return read, jobs, notes


def _speeds(cluster: Cluster, penalties: Path | None) -> Speeds:
    from ddlprof.extensions.cluster.penalties import PenalisedSpeeds, read_penalties, shipped_penalties

    return PenalisedSpeeds(cluster, shipped_penalties() if penalties is None else read_penalties(penalties))


def _question(
    trace: Trace, shape: str, arrivals: str, setting: Setting, cases: Sequence[SimulationCase], left_out: list[str]
) -> SimulationQuestion:
    from ddlprof.extensions.cluster.profile import profile
    from ddlprof.extensions.cluster.report.data import SimulationQuestion, assumed

    jobs, machines = setting.jobs, setting.cluster.machines
    ideal = [job.ideal_s * job.gpus for job in jobs if job.ideal_s is not None]
    return SimulationQuestion(
        trace=trace.name,
        jobs=len(jobs),
        asked_gpu_hours=sum(ideal) / 3600 if len(ideal) == len(jobs) else None,
        submitted_within_s=max(job.submit_s for job in jobs) - min(job.submit_s for job in jobs),
        cluster=shape,
        machines=len(machines),
        racks=len({machine.rack for machine in machines}),
        gpus=setting.cluster.gpus,
        gpu_models=[model for model in setting.cluster.gpu_models if model is not None],
        seeds=list(dict.fromkeys(case.seed for case in cases)),
        restart_s=setting.restart_s,
        pred_error=setting.pred_error,
        arrivals=arrivals,
        notes=[*left_out, *assumed(setting, cases)],
        past=profile(trace.past, setting.cluster.gpus),
    )


@contextmanager
def _job_file(csv: Path | None) -> Iterator[Callable[[CaseResult], CaseResult]]:
    """Writes `jobs.csv` while simulations end. Raises UserError where it cannot be written."""
    from ddlprof.extensions.cluster.report.csv import job_file

    if csv is None:
        yield lambda result: result
        return
    path = csv / "jobs.csv"
    with refusing(f"{path}: cannot be written"), job_file(path) as add:
        yield add


def _report(data: SimulatedData, results: Sequence[CaseResult], destinations: Wanted) -> None:
    from ddlprof.extensions.cluster.report import csv as csv_files
    from ddlprof.extensions.cluster.report import json, text

    def page(data: SimulatedData) -> Iterable[str]:
        from ddlprof.extensions.cluster.report import html

        return html.render(data)

    def write_csv(folder: Path) -> None:
        for name, content in csv_files.render(results).items():
            path = folder / name
            with refusing(f"{path}: cannot be written"):
                replace_whole(path, content)

    destinations.write({"table": text.render, "json": json.render, "html": page}, data, {"csv": write_csv})


_MOST_SEEDS = 10_000
_MOST_NUMBERS = 100
_LARGEST_SEED = 2**32


def seeds(text: str) -> list[int]:
    """`0`, `0,7` or `0-4`, each once. Raises UserError for anything else."""
    found: list[int] = []
    for word in names_in(text):
        parts = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", word, re.ASCII)
        first, last = (int(parts[1]), int(parts[2] or parts[1])) if parts else (1, 0)
        if not first <= last <= _LARGEST_SEED or len(found) + last - first >= _MOST_SEEDS:
            raise UserError(f"--seed {text!r}: give whole numbers or ranges, as in 0,7 or 0-4")
        found += range(first, last + 1)
    if not found:
        raise UserError(f"--seed {text!r}: give whole numbers or ranges, as in 0,7 or 0-4")
    return list(dict.fromkeys(found))


def numbers(text: str, option: str, low: float, high: float) -> list[float]:
    """`0.5,0.9`, each once, from `low` to `high`. Raises UserError naming the option."""
    try:
        found = [float(word) for word in names_in(text)]
    except ValueError:
        found = []
    if not found or len(found) > _MOST_NUMBERS or not all(low <= number <= high for number in found):
        raise UserError(f"{option} {text!r}: give numbers from {low:g} to {high:g}, as in 0.5,0.9")
    return list(dict.fromkeys(found))


def names(text: str) -> list[str]:
    """`fifo,las`, each once."""
    return list(dict.fromkeys(names_in(text)))
