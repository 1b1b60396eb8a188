"""`ddlprof cluster advise`: what jobs lose when they are spread, and hints for schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.options import LearnedFileInShortHelp, names_in
from ddlprof.cli.output import Out, format_option, wanted

_MOST_GPUS = 100_000
HINTS = ("slurm", "volcano", "kueue", "kubernetes")
"""The formats that are hints for a scheduler."""
_ENDINGS = {".yaml": "volcano", ".yml": "volcano", ".sh": "slurm"}
if TYPE_CHECKING:
    from ddlprof.recommender import Target

FORMATS = ("table", "json", "csv", *HINTS)

_PerNode = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=_MOST_GPUS, help="GPUs of one machine [of the instance type, or of the runs]."
    ),
]
_Instance = Annotated[str | None, typer.Option(metavar="TYPE", help="Machines of a cloud [those of the run].")]
_Gpu = Annotated[str | None, typer.Option(metavar="MODEL", help="GPUs outside a cloud, such as 'RTX 3090'.")]
_Interconnect = Annotated[
    str | None, typer.Option(metavar="LINK", help="With --gpu, links in a machine: pcie3..5 or nvlink1..5.")
]
_Network = Annotated[
    float | None, typer.Option(metavar="G", min=1e-3, max=1e6, help="With --gpu, Gbit/s between machines of a rack.")
]
_BetweenRacks = Annotated[
    float | None,
    typer.Option(metavar="G", min=1e-3, max=1e6, help="Gbit/s of a machine to machines of other racks, as under load."),
]
_Batch = Annotated[int | None, typer.Option(metavar="B", min=1, help="Samples per GPU and forward pass [as in RUN].")]
_Remaining = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="How long each job still runs on the closest GPUs: 12h, or by job bert=2d,resnet=3h,12h."
    ),
]
_History = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Past waits, a CSV file: gpus,level,waited_s; level is machine or rack."),
]
_RackTier = Annotated[
    int, typer.Option(metavar="T", min=1, max=100, help="Volcano: the tier of HyperNodes that are racks.")
]


def advise(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run directories, folders of them or URLs, or files of `ddlprof features`; runs of one job on"
            " different placements count together.",
        ),
    ],
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=_MOST_GPUS, help="GPUs of each job [the most of its runs].")
    ] = None,
    gpus_per_node: _PerNode = None,
    instance: _Instance = None,
    gpu: _Gpu = None,
    interconnect: _Interconnect = None,
    network_gbps: _Network = None,
    between_racks_gbps: _BetweenRacks = None,
    batch: _Batch = None,
    remaining: _Remaining = None,
    history: _History = None,
    rack_tier: _RackTier = 1,
    learned: LearnedFileInShortHelp = None,
    out: Out = None,
    format: Annotated[
        str | None,
        format_option(FORMATS, besides="; the last four: hints for that scheduler, with --remaining", also=["--emit"]),
    ] = None,
) -> None:
    """Say what jobs lose when their GPUs are far apart, and how long it is worth waiting for closer ones.

    Measured by the runs where they had such placements, else predicted.
    """
    from ddlprof.extensions.cluster.advice import read_history
    from ddlprof.extensions.cluster.planning.spread import spread_advice
    from ddlprof.extensions.cluster.report.advice import formats, kubernetes, slurm, text, volcano
    from ddlprof.planning.learned import learned_for

    machine = _machine(instance, gpu, interconnect, network_gbps)
    destinations = wanted(out, format, FORMATS, endings=_ENDINGS)
    if remaining is None and any(place.format in HINTS for place in destinations.destinations):
        raise UserError("hints need --remaining TIME: how long a job still runs decides how long it pays to wait")
    rest_s, rest_of = _remaining(remaining)
    waits = None if history is None else read_history(history)
    jobs = spread_advice(
        run, machine, gpus, gpus_per_node, between_racks_gbps, batch, rest_s, waits, learned_for(learned), rest_of
    )
    destinations.write(
        {
            "table": text.render,
            "json": formats.as_json,
            "csv": formats.as_csv,
            "slurm": slurm.render,
            "volcano": lambda jobs: volcano.render(jobs, rack_tier),
            "kueue": lambda jobs: kubernetes.render(jobs, kueue=True),
            "kubernetes": lambda jobs: kubernetes.render(jobs, kueue=False),
        },
        jobs,
    )


def _remaining(text: str | None) -> tuple[float | None, dict[str, float]]:
    """The seconds of `12h` for all jobs, and of `bert=2d` for one. Raises UserError for anything else."""
    from ddlprof.base.units import parse_duration

    rest_s: float | None = None
    of_jobs: dict[str, float] = {}
    for word in () if text is None else names_in(text) or [text]:
        name, equals, time = word.rpartition("=")
        if equals:
            of_jobs[name] = parse_duration(time, "--remaining")
        else:
            rest_s = parse_duration(word, "--remaining")
    return rest_s, of_jobs


def _machine(
    instance: str | None, gpu: str | None, interconnect: str | None, network_gbps: float | None
) -> Target | None:
    """The machine that is asked for; None: that of the runs. Raises UserError for a half or a double description."""
    from ddlprof.recommender import Target

    if instance is not None and (gpu is not None or network_gbps is not None or interconnect is not None):
        raise UserError(
            "--instance tells GPU and links: give it alone, or --gpu with --interconnect and --network-gbps"
        )
    if gpu is None and (network_gbps is not None or interconnect is not None):
        raise UserError("--network-gbps and --interconnect describe a machine: give its --gpu too")
    if instance is None and gpu is None:
        return None
    return Target(instance, gpu_model=gpu, interconnect=interconnect, network_gbps=network_gbps)
