"""`ddlprof learn`: corrections of the predictor from all runs under a folder or in a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlprof.base.errors import complain
from ddlprof.cli.output import Destination, Out, Wanted, format_option, wanted

FORMATS = ("table", "json")
NOT_BETTER_EXIT_CODE = 1
"""The exit code where predictions of jobs left out did not get better."""


def learn(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with runs at any depth, or its URL (s3://...).")],
    out: Out = None,
    format: Annotated[
        str | None, format_option(FORMATS, besides="; json: the file for --learned, which has no names in it")
    ] = None,
) -> None:
    """Learn from all runs under a folder how fast your GPUs and links are, for predictions of the next job.

    Says how far off predictions were before and after, on jobs left out. Where they did not get better, it says so,
    writes nothing, and the exit code is 1.
    """
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.learn import report
    from ddlprof.extensions.learn.planning import learn_from

    destinations = wanted(out, format, FORMATS)
    found = learn_from(folder, progress)
    renderers = {"table": report.render, "json": report.as_json}
    if found.lesson.learned is None:
        Wanted([Destination("table", None)]).write(renderers, found)
        raise typer.Exit(NOT_BETTER_EXIT_CODE)
    if destinations.has_files_only:
        complain(report.in_a_line(found))
    destinations.write(renderers, found)
