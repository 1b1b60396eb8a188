"""`ddlprof run`: an unmodified training script with instrumentation."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlprof.cli.output import directory_option
from ddlprof.cli.panels import output_option, panel
from ddlprof.model.options import DataCall, Options

_script_option, _measure_option, _ranks_option = panel("Script"), panel("Measurement"), panel("Ranks")

_HangAfter = Annotated[
    float | None,
    _measure_option(metavar="SECONDS", min=1, help="Take it for a hang if so long nothing happens [60]."),
]


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Python script, or a launcher's command.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    module: Annotated[bool, _script_option("-m", "--module", help="SCRIPT is a module, as for python -m.")] = False,
    out: Annotated[str | None, directory_option("Run directory [ddlprof-runs/NAME-TIME].")] = None,
    quiet: Annotated[bool, output_option("--quiet", help="Print nothing but errors.")] = False,
    stop_after: Annotated[
        int | None,
        _measure_option(metavar="N", min=1, help="Measure N steady steps, then leave the training alone."),
    ] = None,
    step_optimizer: Annotated[
        str | None, _script_option(metavar="NAME", help="Class of the optimizer whose step() ends a training step.")
    ] = None,
    data_call: Annotated[
        list[str] | None,
        _script_option(metavar="MODULE:FUNCTION", help="Function that makes the batches, if no DataLoader does."),
    ] = None,
    no_calibrate: Annotated[
        bool, _measure_option("--no-calibrate", help="Do not time communication inside the machine at the start.")
    ] = False,
    profiler_windows: Annotated[
        int,
        _measure_option(metavar="N", min=0, help="Open up to N windows of torch's profiler, of a few steps each."),
    ] = 0,
    time_collectives: Annotated[
        bool,
        _measure_option("--time-collectives", help="Let torch time NCCL's collectives, which may slow them down."),
    ] = False,
    hang_after: _HangAfter = None,
    live: Annotated[bool, output_option("--live", help="Show on stderr where the run is while it trains.")] = False,
    nproc_per_node: Annotated[
        str | None, _ranks_option(metavar="N", help="Start N ranks on each machine (also: gpu, cpu, auto).")
    ] = None,
    nnodes: Annotated[int | None, _ranks_option(metavar="M", min=1, help="Number of machines in the job.")] = None,
    node_rank: Annotated[int | None, _ranks_option(metavar="K", min=0, help="Number of this machine, from 0.")] = None,
    master_addr: Annotated[str | None, _ranks_option(metavar="A", help="Address of machine 0.")] = None,
    master_port: Annotated[
        int | None, _ranks_option(metavar="P", min=1, max=65535, help="A free port on machine 0.")
    ] = None,
) -> None:
    """Run a training script as python or torchrun would, and show where the time of its steps goes."""
    from ddlprof.cli.fast_path import run_target
    from ddlprof.launch.target import LaunchTarget
    from ddlprof.launch.torchrun import LauncherOptions

    options = Options(
        out,
        quiet,
        stop_after,
        step_optimizer,
        calibrate=not no_calibrate,
        data_calls=[str(DataCall.parse(text)) for text in data_call or []],
        profiler_windows=profiler_windows,
        time_collectives=time_collectives,
        live=live and not quiet,
        hang_after=hang_after,
    )
    job = LauncherOptions(nproc_per_node, nnodes, node_rank, master_addr, master_port)
    raise typer.Exit(run_target(LaunchTarget([script, *(args or [])], module), job, options))
