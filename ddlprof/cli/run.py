"""`ddlprof run`: an unmodified training script with instrumentation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.model.data_call import DataCall
from ddlprof.model.errors import UserError
from ddlprof.model.naming import on_this_machine
from ddlprof.model.options import DISABLE_VARIABLE, Options

if TYPE_CHECKING:
    from ddlprof.launch.elastic import Job
    from ddlprof.launch.target import Target


def run(
    script: Annotated[str, typer.Argument(help="Python script, or a launcher's command.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")] = False,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", callback=on_this_machine, help="Run directory [ddlprof-runs/NAME-TIME]."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    stop_after: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Measure N steady steps, then leave the training alone.")
    ] = None,
    step_optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Class of the optimizer whose step() ends a training step.")
    ] = None,
    data_call: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Function that makes the batches, if no DataLoader does."),
    ] = None,
    no_calibrate: Annotated[
        bool, typer.Option("--no-calibrate", help="Do not time communication inside the machine at the start.")
    ] = False,
    profiler_windows: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Open up to N windows of torch's profiler, of a few steps each."),
    ] = 0,
    time_collectives: Annotated[
        bool, typer.Option("--time-collectives", help="Let torch time NCCL's collectives, which may slow them down.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Show on stderr where the run is while it trains.")] = False,
    nproc_per_node: Annotated[
        str | None, typer.Option(metavar="N", help="Start N ranks on each machine (also: gpu, cpu, auto).")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(metavar="M", min=1, help="Number of machines in the job.")] = None,
    node_rank: Annotated[int | None, typer.Option(metavar="K", min=0, help="Number of this machine, from 0.")] = None,
    master_addr: Annotated[str | None, typer.Option(metavar="A", help="Address of machine 0.")] = None,
    master_port: Annotated[
        int | None, typer.Option(metavar="P", min=1, max=65535, help="A free port on machine 0.")
    ] = None,
) -> None:
    """Run a training script as python or torchrun would, and show where the time of its steps goes."""
    from ddlprof.launch.elastic import Job
    from ddlprof.launch.target import Target

    data_calls = [str(DataCall.parse(text)) for text in data_call or []]
    disabled = os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0")
    options = Options(
        out,
        quiet,
        stop_after,
        step_optimizer,
        calibrate=not no_calibrate,
        data_calls=data_calls,
        profiler_windows=profiler_windows,
        time_collectives=time_collectives,
        live=live and not quiet,
    )
    job = Job(nproc_per_node, nnodes, node_rank, master_addr, master_port)
    _run(Target([script, *(args or [])], module), job, None if disabled else options)


def _run(target: Target, job: Job, options: Options | None) -> None:
    """Runs the target in the form that it asks for."""
    from ddlprof.cli.torch_needed import require_torch
    from ddlprof.launch import command, elastic, process
    from ddlprof.launch.python import python_command

    torchrun_words = elastic.torchrun_words(target)
    if torchrun_words is not None:
        _say_once(job, "torchrun")
        require_torch()
        raise typer.Exit(elastic.launch_torchrun(torchrun_words, options))
    python = None if target.module else python_command(target.words)
    if python is None and not target.module and command.is_command(target.words):
        _say_once(job, target.words[0])
        raise typer.Exit(command.run_command(target.words, options))
    if options or job.asked_for():  # a command of its own, above, may start a Python that has torch
        require_torch()
    if job.asked_for():
        raise typer.Exit(elastic.launch_target(job, python.target if python else target, options))
    if python is not None:
        process.become(python.target, options, python.options)
    else:
        process.become(target, options)


def _say_once(job: Job, launcher: str) -> None:
    if job.asked_for():
        raise UserError(f"say how many processes once: to {launcher}, or to ddlprof run without {launcher}")
