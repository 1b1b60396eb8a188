"""`ddlprof report`: the report of a run, complete or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ddlprof.model.errors import UserError

RUN_HELP = (
    "Run directory or its URL (s3://...); the run may be unfinished or still going. "
    "Several are taken as parts of one run whose ranks share no file system; so are run directories in one folder."
)


def report(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUN_HELP)],
    format: Annotated[
        str, typer.Option("--format", metavar="F,...", help="Formats of the report: table, json, or both.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report to FILE; takes one format.")
    ] = None,
) -> None:
    """Show where the time of a run's steps went, what bounds them, and what to do next."""
    from ddlprof.cli.progress import progress
    from ddlprof.cli.screen import echo, show

    formats = _formats(format, output)
    with progress("reading") as advance:
        texts = _render(run, formats, advance)
    if output is None:
        for number, (name, text) in enumerate(zip(formats, texts, strict=True)):
            (show if name == "table" else echo)(f"\n{text}" if number else text)
        return
    try:
        output.write_text(texts[0], encoding="utf-8")
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror or error}") from None


def _formats(text: str, output: Path | None) -> list[str]:
    from ddlprof.report.run.formats import FORMATS

    formats = [name.strip() for name in text.split(",")]
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"unknown format {name!r}; known: {', '.join(FORMATS)} (CSV: ddlprof export)")
    if output is not None and len(formats) > 1:
        raise UserError("-o takes one format: run the command once for each file")
    return formats


def _render(runs: list[str], formats: list[str], advance: Callable[[int, int], None]) -> list[str]:
    import time

    from ddlprof.analysis.run import analyse
    from ddlprof.report.run.data import build_report
    from ddlprof.report.run.formats import FORMATS
    from ddlprof.store import load_run

    data = load_run(runs, advance)
    built = build_report(data, analyse(data), now_unix_ns=time.time_ns())
    return [FORMATS[name](built) for name in formats]
