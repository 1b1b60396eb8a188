"""`ddlprof fleet`: all runs under a folder or in a bucket."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, format_option, wanted

FORMATS = ("table", "json", "csv")

_Analyse = Annotated[
    int, typer.Option(metavar="N", min=0, help="Analyse up to N runs that have no summary.json, which takes longer.")
]


def fleet(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with runs at any depth, or its URL (s3://...).")],
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs that began within this time: 7d, 12h.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs of this job; * stands for any characters.")
    ] = None,
    sort: Annotated[str, typer.Option(metavar="KEY", help="Order: when, job, hours, usd, lost or step.")] = "when",
    by: Annotated[
        str,
        typer.Option(
            metavar="run|node|job",
            help="A line for each run, for each machine that they had, or for each job with its goodput.",
        ),
    ] = "run",
    instance: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type of the machines of runs that do not tell theirs.")
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="Lines of the table; the total is always of all runs.")
    ] = 100,
    analyse: _Analyse = 20,
) -> None:
    """List all runs under a folder: machines, verdict, hours and dollars lost, and what changed since the last run."""
    from ddlprof.base.units import parse_duration
    from ddlprof.cli.screen import progress
    from ddlprof.instance_catalog import load as load_catalog
    from ddlprof.report.fleet.by import renderers_of
    from ddlprof.report.fleet.data import entries_of, rows_of
    from ddlprof.report.fleet.formats import SORTS, Listing
    from ddlprof.store.fleet import search

    destinations, renderers = wanted(out, format, FORMATS), renderers_of(by)
    if sort not in SORTS:
        raise UserError(f"unknown --sort {sort!r}; known: {', '.join(SORTS)}")
    now_ns = time.time_ns()
    earliest_ns = now_ns - round(parse_duration(since, "--since") * 1e9) if since else 0
    catalog = load_catalog()
    if instance is not None:
        catalog.instance(instance)  # before the search, so that a wrong name fails at once
    found = search(folder)
    if not found.runs:
        raise UserError("; ".join([f"{folder}: no run in it", *found.left_out, "make one with: ddlprof run SCRIPT"]))
    with progress("reading summaries") as advance:
        entries = entries_of(found, analyse, now_ns, advance)
    rows = [
        row
        for row in rows_of(entries.entries, catalog, instance)
        if row.summary.created_unix_ns >= earliest_ns and (job is None or _matches(row.summary.job, job))
    ]
    destinations.write(renderers, Listing(sorted(rows, key=SORTS[sort]), entries.left_out, top))


def _matches(name: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)
