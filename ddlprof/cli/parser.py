"""Puts the commands together: `ddlprof`'s parser, and what it says of wrong words."""

from __future__ import annotations

from typing import Annotated

import typer

import ddlprof
from ddlprof.base.errors import complain
from ddlprof.cli.commands import LazyGroup

_USAGE_EXIT_CODE = 2
_MAX_STEPS = {"--steps": "--max-steps N"}
_RENAMED = {
    "report": {"--steps": "--step-range A:B"},
    "watch": {"--steps": "--total-steps N"},
    "characterize": {**_MAX_STEPS, "--json": "--format json, for standard output"},
    "sparsity": _MAX_STEPS,
    "fuse": {**_MAX_STEPS, "--max-b": "--max-models N", "--beside": "--processes N"},
    "fleet": {"--load": "--analyse N"},
    "share": {"--check": "--inspect"},
    "plan": {
        "--cluster": "--machines FILE",
        "--batch": "--global-batch N",
        "--trace-out": "-o FILE --format trace",
    },
    "elastic": {"--per-machine": "--gpus-per-node N"},
    "cluster advise": {"--gpus-per-machine": "--gpus-per-node N", "--emit": "--format slurm or volcano"},
    "cluster simulate": {"--csv": "-o DIR/"},
    "instances refresh": {"--instances": "--instance TYPE,..."},
}
"""By command, what to type in place of an option that had another name once."""
_RENAMED_EVERYWHERE = {
    "--output": "-o FILE",
    "--csv": "-o FILE.csv",
    "--json": "-o FILE.json",
    "--html": "-o FILE.html",
}

# Plain help: rich mark-up doubles the time of `--help`.
app = typer.Typer(rich_markup_mode=None, cls=LazyGroup)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddlprof {ddlprof.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Show where the time of each training step of an unmodified PyTorch script goes."""


def call(arguments: list[str]) -> int:
    """Runs the command; returns the exit code. Raises `DdlprofError` as commands do."""
    try:
        # Not app(): that sets sys.excepthook. An int is the exit code of typer.Exit.
        result = typer.main.get_command(app).main(arguments, prog_name="ddlprof", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Usage errors: click's classes, or typer's copy of them, depending on typer's version.
        if not hasattr(error, "format_message"):
            raise
        command = _command_path(error)
        message = _renamed(command, error) or " ".join(error.format_message().split()).rstrip(".")
        complain(f"{message} (see {command} --help)")
        return _USAGE_EXIT_CODE
    return result if isinstance(result, int) else 0


def _renamed(command: str, usage_error: Exception) -> str | None:
    """What to type now in place of an option that is gone."""
    option = getattr(usage_error, "option_name", "")
    name = command.removeprefix("ddlprof").strip()
    now = _RENAMED.get(name, {}).get(option) or (_RENAMED_EVERYWHERE.get(option) if name else None)
    return f"{option} has another name now: type {now}" if now else None


def _command_path(usage_error: Exception) -> str:
    context = getattr(usage_error, "ctx", None)
    return context.command_path if context else "ddlprof"
