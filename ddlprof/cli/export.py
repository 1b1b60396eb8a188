"""`ddlprof export`: the tables of a run as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.cli.report import RUN_HELP
from ddlprof.model.errors import UserError


def export(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN_HELP)],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory to write to; files of the same names are replaced.")
    ],
    format: Annotated[str, typer.Option("--format", metavar="F", help="Format of the files: csv.")] = "csv",
) -> None:
    """Write the tables of a run: steps.csv, collectives.csv, ranks.csv, job.csv and summary.csv."""
    if format != "csv":
        raise UserError(f"unknown format {format!r}; known: csv")
    from ddlprof.analysis.run import analyse
    from ddlprof.cli.progress import progress
    from ddlprof.cli.screen import show
    from ddlprof.report.lines import text_of
    from ddlprof.report.run import csv
    from ddlprof.store import load_run

    with progress("reading") as advance:
        data = load_run(run, advance)
    with progress("writing") as advance:
        paths = csv.export(data, analyse(data), out, advance)
    show(text_of(map(str, paths)))
