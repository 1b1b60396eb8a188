"""The `ddlprof` command: puts the commands together and turns errors into one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import ddlprof
from ddlprof.cli.commands import LazyGroup
from ddlprof.model.errors import DdlprofError, complain

_INTERRUPT_EXIT_CODE = 130

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


def main() -> int:
    """The entry point; returns the exit code."""
    try:
        code = _call(sys.argv[1:] or ["--help"])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPT_EXIT_CODE
    except BrokenPipeError:  # the reader had enough, as in `ddlprof report RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    return code


def _call(arguments: list[str]) -> int:
    try:
        # Not app(): that sets sys.excepthook. An int is the exit code of typer.Exit.
        result = typer.main.get_command(app).main(arguments, prog_name="ddlprof", standalone_mode=False)
    except DdlprofError as error:
        complain(str(error))
        return 2
    except typer.Abort:
        return _INTERRUPT_EXIT_CODE
    except Exception as error:
        # Usage errors: click's classes, or typer's copy of them, depending on typer's version.
        if not hasattr(error, "format_message"):
            raise
        message = " ".join(error.format_message().split()).rstrip(".")
        complain(f"{message} (see {_command_path(error)} --help)")
        return 2
    return result if isinstance(result, int) else 0


def _command_path(usage_error: Exception) -> str:
    context = getattr(usage_error, "ctx", None)
    return context.command_path if context else "ddlprof"
