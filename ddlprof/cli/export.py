"""`ddlprof export`: the tables of a run as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.base.errors import UserError, complain
from ddlprof.cli.latest import run_argument
from ddlprof.cli.options import PHASE_HELP, RUN_HELP
from ddlprof.cli.output import directory_option, say_written

_FORMATS = ("csv", "parquet")


def _print_columns(wanted: bool) -> None:
    if not wanted:
        return
    from ddlprof.cli.screen import echo
    from ddlprof.report.run.columns import RUN_COLUMNS

    for table, columns in RUN_COLUMNS.items():
        echo(f"{table}.csv\n")
        width = max(map(len, columns))
        for name, each in columns.items():
            echo(f"  {name:{width}}  {each.meaning}{f'; empty: {each.empty}' * bool(each.empty)}\n")
    raise typer.Exit


def export(
    out: Annotated[Path, directory_option("Directory to write to; files of the same names are replaced.")],
    run: Annotated[
        list[str] | None,
        run_argument(
            f"{RUN_HELP} With --format parquet, those with the same job id are parts of one run, and others are "
            "other runs."
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="F",
            help="Format of the files: csv, or parquet (DIR/TABLE/job=NAME/run=ID/part-0.parquet, for many runs).",
        ),
    ] = "csv",
    phase: Annotated[int | None, typer.Option(metavar="N", min=1, help=PHASE_HELP)] = None,
    columns: Annotated[
        bool,
        typer.Option(
            "--columns",
            callback=_print_columns,
            is_eager=True,
            help="Print what the columns of all tables mean, and exit.",
        ),
    ] = False,
) -> None:
    """Write the tables of a run: steps, collectives, ranks, job, rates and summary."""
    if format not in _FORMATS:
        raise UserError(f"unknown format {format!r}; known: {', '.join(_FORMATS)}")
    from ddlprof.store.reader import runs_in

    run = run or []
    runs = [run] if format == "csv" else runs_in(run)
    if len(runs) == 1:
        _export(runs[0], out, format, phase)
    elif phase is not None:
        raise UserError("--phase is of one run: leave it out, or name one RUN")
    elif failed := [paths for paths in runs if not _is_exported(paths, out)]:
        raise UserError(f"{len(failed)} of {len(runs)} runs are not exported: see the lines above")


def _is_exported(paths: list[str], out: Path) -> bool:
    """Exports one of several runs; returns False, after a line on stderr, where it cannot be read."""
    try:
        _export(paths, out, "parquet")
    except UserError as error:
        complain(str(error))
        return False
    return True


def _export(paths: list[str], out: Path, format: str, phase: int | None = None) -> None:
    from ddlprof.analysis.run import analyse, headline_attempt
    from ddlprof.cli.screen import progress
    from ddlprof.report.run import csv, parquet
    from ddlprof.report.run.phases import require_phase
    from ddlprof.store import load_run

    with progress("reading") as advance:
        data = load_run(paths, advance)
    with progress("writing") as advance:
        write, attempts = parquet.export if format == "parquet" else csv.export, analyse(data, phase)
        require_phase(headline_attempt(attempts), phase)
        written = write(data, attempts, out, advance)
    for path in written:
        say_written(path)
