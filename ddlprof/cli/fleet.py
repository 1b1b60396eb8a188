"""`ddlprof fleet`: all runs under a folder or in a bucket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, format_option, wanted

if TYPE_CHECKING:
    from ddlprof.report.fleet.data import Row
    from ddlprof.report.fleet.jobs_text import Jobs

FORMATS = ("table", "json", "csv")
GROUPS = ("run", "job")


_Analyse = Annotated[
    int,
    typer.Option(
        "--analyse", metavar="N", min=0, help="Analyse up to N runs that have no summary.json, which takes longer."
    ),
]
_By = Annotated[
    str, typer.Option("--by", metavar="WHAT", help="A line for each run, or for each job with its goodput: run or job.")
]


def fleet(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with runs at any depth, or its URL (s3://...).")],
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only runs that began within this time: 7d, 12h.")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="Only runs of this job; * stands for any characters.")
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="Order: when, job, hours, usd, lost or step.")
    ] = "when",
    instance: Annotated[
        str | None,
        typer.Option("--instance", metavar="TYPE", help="Type of the machines of runs that do not tell theirs."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Lines of the table; the total is always of all runs.")
    ] = 100,
    analyse: _Analyse = 20,
    by: _By = "run",
) -> None:
    """List all runs under a folder: machines, verdict, hours and dollars lost, and what changed since the last run."""
    from ddlprof.base.units import parse_duration
    from ddlprof.cli.screen import progress
    from ddlprof.report.fleet.data import entries_of, rows_of
    from ddlprof.report.fleet.formats import FORMATS as RENDERERS
    from ddlprof.report.fleet.formats import SORTS, Listing
    from ddlprof.store.fleet import search
    from instance_catalog import load as load_catalog

    places = wanted(out, format, FORMATS)
    if sort not in SORTS:
        raise UserError(f"unknown --sort {sort!r}; known: {', '.join(SORTS)}")
    if by not in GROUPS:
        raise UserError(f"unknown --by {by!r}; known: {', '.join(GROUPS)}")
    now_ns = time.time_ns()
    earliest_ns = now_ns - round(parse_duration(since, "--since") * 1e9) if since else 0
    catalog = load_catalog()
    if instance is not None:
        catalog.instance(instance)  # before the search, so that a wrong name fails at once
    found = search(folder)
    if not found.runs:
        raise UserError(f"{folder}: no run in it" + "".join(f"; {line}" for line in found.left_out))
    with progress("reading summaries") as advance:
        entries = entries_of(found, analyse, now_ns, advance)
    rows = [
        row
        for row in rows_of(entries.entries, catalog, instance)
        if row.summary.created_unix_ns >= earliest_ns and (job is None or _matches(row.summary.job, job))
    ]
    if by == "job":
        places.write(*_by_job(rows, entries.left_out, top))
        return
    places.write(RENDERERS, Listing(sorted(rows, key=SORTS[sort]), entries.left_out, top))


def _by_job(rows: list[Row], left_out: list[str], top: int) -> tuple[dict[str, Callable[[Any], str]], Jobs]:
    """The formats of a list of jobs, and the list."""
    from ddlprof.report.fleet.jobs import jobs_of
    from ddlprof.report.fleet.jobs_text import FORMATS, Jobs

    unknown = sum(not row.summary.trials for row in rows)
    return FORMATS, Jobs(jobs_of(rows), unknown, left_out, top)


def _matches(name: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)
