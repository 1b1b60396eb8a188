"""`ddlprof report`: the report of a run, complete or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.cli.formats import chosen_formats
from ddlprof.model.errors import UserError

if TYPE_CHECKING:
    from ddlprof.report.run.formats import Analysed

RUN_HELP = (
    "Run directory or its URL (s3://...); the run may be unfinished or still going. "
    "Several are taken as parts of one run whose ranks share no file system; so are run directories in one folder."
)


def report(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN_HELP)],
    format: Annotated[
        str,
        typer.Option("--format", metavar="F,...", help="Formats: table, json, html, trace (for Perfetto)."),
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the report to FILE (compressed: FILE.gz); takes one format."
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            "--instance", metavar="TYPE", help="Instance type at whose price lost time is counted in dollars."
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="A:B", help="Show the steps from A up to but not including B (trace)."),
    ] = None,
    save_summary: Annotated[
        bool,
        typer.Option(
            "--save-summary", help="Also write summary.json into RUN, for ddlprof fleet; the end of a run does so."
        ),
    ] = False,
) -> None:
    """Show where the time of a run's steps went, what bounds them, and what to do next."""
    from ddlprof.cli.files import write_pieces
    from ddlprof.cli.progress import progress
    from ddlprof.cli.screen import echo, show
    from ddlprof.report.run.formats import FORMATS

    formats, window = chosen_formats(format, output, FORMATS, " (CSV: ddlprof export)"), _steps(steps)
    with progress("reading") as advance:
        analysed = _analysed(run, advance, instance, window)
    if save_summary:
        _save_summary(run, analysed)
    if output is None:
        for number, name in enumerate(formats):
            text = "".join(FORMATS[name](analysed))
            (show if name == "table" else echo)(f"\n{text}" if number else text)
        return
    write_pieces(output, FORMATS[formats[0]](analysed))


def _save_summary(runs: list[str], analysed: Analysed) -> None:
    """Writes the summary into the run directory. Where that fails, a line says so, and the report is shown."""
    from ddlprof.model.errors import complain
    from ddlprof.report.run.summary import summarise_run

    if len(runs) > 1 or "://" in runs[0]:
        raise UserError("--save-summary takes one run directory of this machine")
    try:
        summarise_run(analysed.run, analysed.attempts, analysed.report).write(Path(runs[0]))
    except OSError as error:
        complain(f"{runs[0]}: summary.json cannot be written: {error.strerror or error}")


def _steps(text: str | None) -> tuple[int | None, int | None]:
    """The bounds of `A:B`, either of which may be left out."""
    if text is None:
        return None, None
    first, colon, end = text.partition(":")
    if not colon or not all(bound == "" or (bound.isascii() and bound.isdigit()) for bound in (first, end)):
        raise UserError(f"--steps {text!r}: give the first step and the one after the last, as in 100:110")
    bounds = int(first) if first else None, int(end) if end else None
    if bounds[1] is not None and bounds[1] <= (bounds[0] or 0):
        raise UserError(f"--steps {text!r}: there is no step in it")
    return bounds


def _analysed(
    runs: list[str],
    advance: Callable[[int, int], None],
    instance: str | None,
    steps: tuple[int | None, int | None],
) -> Analysed:
    import time

    from ddlprof.analysis.run import analyse
    from ddlprof.report.run.formats import Analysed
    from ddlprof.store import load_run

    data = load_run(runs, advance)
    return Analysed(data, analyse(data), time.time_ns(), instance, steps)
