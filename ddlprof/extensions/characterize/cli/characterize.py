"""`ddlprof characterize`: the differential experiments known from the literature, beside the direct attribution."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError, complain, refusing
from ddlprof.cli.options import names_in
from ddlprof.cli.output import directory_option, format_option, wanted
from ddlprof.extensions.characterize.experiment import COLD, EXPERIMENTS, NETWORK, WARM

if TYPE_CHECKING:
    from ddlprof.extensions.characterize.launch import PlannedRun
    from ddlprof.extensions.characterize.report import ExperimentOutcome
    from ddlprof.launch.target import LaunchTarget


FORMATS = ("table", "json")


def characterize(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Python script.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")] = False,
    nproc_per_node: Annotated[int, typer.Option(metavar="N", min=1, help="Number of ranks.")] = 1,
    max_steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of steps in each run, not counting warm-up.")
    ] = 100,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Number of runs of each experiment.")] = 1,
    skip: Annotated[
        str, typer.Option(metavar="E,...", help=f"Experiments to leave out: {', '.join(EXPERIMENTS)}.")
    ] = "",
    network_run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Run directory of the same script on several machines, to compare with."),
    ] = None,
    out: Annotated[str | None, directory_option("Directory to write the runs to [ddlprof-runs/...].")] = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:
    """Run a script several times, each time with fewer things that can stall it, and compare the step times.

    Each run ends after --max-steps steps; the checkpoints and logs that the script writes before that are kept.
    """
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.characterize.launch import plan, run
    from ddlprof.extensions.characterize.report import as_table, build
    from ddlprof.launch.target import LaunchTarget
    from ddlprof.report.json_csv import json_of

    target = LaunchTarget([script, *(args or [])], module)
    target.check()
    destinations = wanted(None, format, FORMATS)
    require_torch()
    planned = plan(nproc_per_node, max_steps, repeat, _skipped(skip))
    if not planned:
        raise UserError("nothing is left to run: skip fewer experiments")
    network = _network(network_run, nproc_per_node, planned) if network_run else None
    directory = _directory(out, target)
    began_s = time.monotonic()
    for number, each in enumerate(planned, start=1):
        complain(f"run {number} of {len(planned)}, {each.describe()}")
        with progress(f"run {number} of {len(planned)}", at_once=True, began_s=began_s) as advance:
            advance(number - 1, len(planned))
            run(each, target, directory)
    comparison = build(target.name, directory, _outcomes(planned, directory) | ({NETWORK: network} if network else {}))
    destinations.write({"table": as_table, "json": json_of}, comparison)


def _skipped(text: str) -> set[str]:
    names = set(names_in(text))
    for name in sorted(names - set(EXPERIMENTS)):
        raise UserError(f"unknown experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
    if COLD not in names and sys.platform != "linux":
        raise UserError(f"only Linux can drop files from its page cache: add --skip {','.join([*sorted(names), COLD])}")
    return names


def _network(directory: Path, ranks: int, planned: list[PlannedRun]) -> ExperimentOutcome:
    """The run on several machines; it is checked before anything is run."""
    from ddlprof.extensions.characterize.report import load_outcome

    outcome = load_outcome([directory])
    if WARM not in {each.name for each in planned}:
        raise UserError(f"--network-run is compared with the warm run: do not skip {WARM}")
    if outcome.ranks != ranks:
        raise UserError(f"{directory} has {outcome.ranks} ranks: compare it with --nproc-per-node {outcome.ranks}")
    return outcome


def _directory(out: str | None, target: LaunchTarget) -> Path:
    from ddlprof.model.naming import default_directory, require_unused

    if out is None:
        return default_directory(f"{target.name}-characterize")
    directory = Path(out)
    require_unused(directory)
    with refusing(f"cannot create {directory}", "; choose another --out"):
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def _outcomes(planned: list[PlannedRun], directory: Path) -> dict[str, ExperimentOutcome]:
    from ddlprof.extensions.characterize.report import load_outcome

    folders = {name: [directory / each.folder for each in planned if each.name == name] for name in EXPERIMENTS}
    return {name: load_outcome(runs) for name, runs in folders.items() if runs}
