"""`ddlprof sparsity`: the work of a training that zeros make unnecessary."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, Wanted, format_option, wanted
from ddlprof.model.options import DISABLE_VARIABLE

if TYPE_CHECKING:
    from ddlprof.extensions.sparsity.model import SparsityCounts
    from ddlprof.launch.target import PythonCommand


FORMATS = ("table", "json", "csv")


def sparsity(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Python script.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")] = False,
    max_steps: Annotated[int, typer.Option(metavar="N", min=1, help="Number of steps to count.")] = 10,
    every: Annotated[int, typer.Option(metavar="K", min=1, help="Count one step of K.")] = 10,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS, besides="; csv has the layers")] = None,
) -> None:
    """Run a training script and count the multiply-adds that zeros make unnecessary, layer by layer.

    The script runs to its end. Without -o the result goes to standard error: standard output is the script's.
    """
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.extensions.sparsity import launch
    from ddlprof.launch.target import become

    command = _command(script, args or [], module)
    destinations = wanted(out, format, FORMATS)
    require_torch()
    if os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0") or not launch.is_first_rank():
        become(command.target, None, command.options)

    def show(counts: SparsityCounts | None) -> None:
        _report(command.target.name, counts, destinations, to_stderr=not out)

    raise typer.Exit(launch.run(command, max_steps, every, show))


def _command(script: str, args: list[str], module: bool) -> PythonCommand:
    from ddlprof.launch.command import is_command
    from ddlprof.launch.target import LaunchTarget, PythonCommand, python_command
    from ddlprof.launch.torchrun import torchrun_words

    target = LaunchTarget([script, *args], module)
    python = None if module else python_command(target.words)
    if python is None and (torchrun_words(target) is not None or (not module and is_command(target.words))):
        raise UserError(f"{script} starts other processes: give sparsity the training script itself")
    command = python or PythonCommand([], target)
    command.target.check()
    return command


def _report(name: str, counts: SparsityCounts | None, destinations: Wanted, *, to_stderr: bool) -> None:
    from ddlprof.base.errors import complain
    from ddlprof.extensions.sparsity.analysis.potential import potential
    from ddlprof.extensions.sparsity.report import TABLE, as_json, as_table

    if counts is None or not counts.steps:
        complain(_nothing(counts))
        return
    destinations.write(
        {
            "table": lambda found: as_table(name, counts, found),
            "json": lambda found: as_json(name, counts, found),
            "csv": lambda found: TABLE.csv(found.layers),
        },
        potential(counts),
        standard_error=to_stderr,
    )


def _nothing(counts: SparsityCounts | None) -> str:
    if counts is None:
        return "nothing was counted: the script ended before torch was imported, or was killed"
    if counts.unseen or counts.compiled:
        return "nothing was counted: torch.compile has the layers; run the script without it to count them"
    if counts.notes:
        return f"nothing was counted: {counts.notes[0]}"
    if counts.steps_seen < 2:
        return f"nothing was counted: {counts.steps_seen} steps of a torch.optim optimizer were seen; it takes two"
    return "nothing was counted: no Linear, convolution, LSTM, GRU or attention was trained"
