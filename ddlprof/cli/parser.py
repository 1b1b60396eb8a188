"""Puts the commands together: `ddlprof`'s parser, and what it says of wrong words."""

from __future__ import annotations

from typing import Annotated

import typer

import ddlprof
from ddlprof.base.errors import complain
from ddlprof.cli.commands import LazyGroup

_USAGE_EXIT_CODE = 2

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
        message = " ".join(error.format_message().split()).rstrip(".")
        complain(f"{message} (see {_command_path(error)} --help)")
        return _USAGE_EXIT_CODE
    return result if isinstance(result, int) else 0


def _command_path(usage_error: Exception) -> str:
    context = getattr(usage_error, "ctx", None)
    return context.command_path if context else "ddlprof"
