"""`ddlprof cluster import`: the history of a cluster as jobs that can be simulated, and what it is like."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ddlprof.base.errors import UserError, complain
from ddlprof.cli.options import names_in
from ddlprof.cli.output import Out, format_option, wanted

FORMATS = ("table", "csv", "waits", "json")


class HistoryKind(str, Enum):
    """Where a history comes from."""

    sacct = "sacct"
    kubernetes = "kubernetes"
    csv = "csv"


_Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="What the scheduler printed; - is standard input."),
]


def import_history(
    kind: Annotated[HistoryKind, typer.Argument(metavar="KIND", help="sacct, kubernetes or csv.")],
    file: _Files,
    columns: Annotated[
        str | None,
        typer.Option(metavar="WHAT=NAME,...", help="csv: columns by what they hold, as in submit=Queued,gpus=GPUs."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="Q,...", help="Only jobs of these partitions, virtual clusters or namespaces [all]."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1_000_000, help="GPUs of the cluster [the most that were held at once]."),
    ] = None,
    out: Out = None,
    format: Annotated[
        str | None,
        format_option(FORMATS, besides="; csv: the jobs, for cluster simulate; waits: for cluster advise --history"),
    ] = None,
) -> None:
    """Read the history of a real cluster, say what the cluster is like, and write its jobs for cluster simulate.

    What is left out is counted.
    """
    from ddlprof.extensions.cluster.history.read import read_history
    from ddlprof.extensions.cluster.report import profile as report
    from ddlprof.report.json_csv import json_of

    destinations = wanted(out, format, FORMATS)
    if columns is not None and kind is not HistoryKind.csv:
        raise UserError(f"--columns names those of csv; those of {kind.value} are known")
    history = read_history(kind.value, file, _named(columns), names_in(queue or ""))
    data = report.build(", ".join(path.name for path in file), history, gpus)
    if not any(place.format == "table" and place.path is None for place in destinations.destinations):
        for note in history.notes():
            complain(note)
    destinations.write(
        {
            "table": report.render,
            "json": json_of,
            "csv": lambda _: report.as_csv(history.jobs),
            "waits": lambda _: report.waits_csv(history.jobs),
        },
        data,
    )


def _named(columns: str | None) -> dict[str, str]:
    """`--columns` by what they hold. Raises UserError for what is not known."""
    from ddlprof.extensions.cluster.history.named import SPELLINGS

    found = dict.fromkeys(names_in(columns or ""))
    pairs = [word.partition("=") for word in found]
    for what, equals, name in pairs:
        if what not in SPELLINGS or not equals or not name:
            raise UserError(f"--columns: {what}{equals}{name}: give WHAT=NAME, WHAT one of {', '.join(SPELLINGS)}")
    return {what: name for what, _, name in pairs}
