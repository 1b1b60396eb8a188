"""`ddlprof report`: the report of a run, complete or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.base.errors import UserError, complain
from ddlprof.cli.latest import run_argument
from ddlprof.cli.options import PHASE_HELP, RUN_HELP
from ddlprof.cli.output import Out, format_option, tells_format, wanted
from ddlprof.report.run.formats import FORMATS, Analysed

GOODPUT_FORMATS = ("table", "json")
_BESIDES = " (CSV: ddlprof export)"


def report(
    run: Annotated[list[str] | None, run_argument(RUN_HELP)] = None,
    out: Out = None,
    format: Annotated[str | None, format_option(tuple(FORMATS), besides="; trace: for Perfetto")] = None,
    instance: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Instance type at whose price lost time is counted in dollars.")
    ] = None,
    step_range: Annotated[
        str | None, typer.Option(metavar="A:B", help="Show the steps from A up to but not including B (trace).")
    ] = None,
    phase: Annotated[int | None, typer.Option(metavar="N", min=1, help=PHASE_HELP)] = None,
    goodput: Annotated[
        bool,
        typer.Option(
            "--goodput",
            help="Show the goodput over all attempts instead: RUNs are attempts of one job, in any directories.",
        ),
    ] = False,
    carbon: Annotated[
        float | None, typer.Option(metavar="G", min=0, help="Grams of CO2 of a kWh where the run was.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser; it is written to RUN/page.html, or to -o.")
    ] = False,
    save_summary: Annotated[
        bool,
        typer.Option(
            "--save-summary", help="Also write summary.json into RUN, for ddlprof fleet; the end of a run does so."
        ),
    ] = False,
) -> None:
    """Show where the time of a run's steps went, what bounds them, and what to do next."""
    run = run or []
    if open_page:
        out = [*(out or []), *_page(run, out)]
    if goodput:
        if save_summary or step_range is not None or phase is not None:
            raise UserError("--goodput is about all attempts: leave out --save-summary, --step-range and --phase")
        _show_goodput(run, out, format, instance)
        return
    if instance is not None:
        _require_known(instance)
    from ddlprof.cli.fast_path import analysed_run, save_summary_of
    from ddlprof.cli.screen import progress

    destinations, window = wanted(out, format, tuple(FORMATS), besides=_BESIDES), _steps(step_range)
    with progress("reading") as advance:
        analysed = analysed_run(run, advance, instance, window, carbon, phase)
    _require_steps(analysed, window)
    if save_summary:
        save_summary_of(run, analysed)
    destinations.write(FORMATS, analysed)
    page = destinations.path_of("html")
    if open_page and page is not None:
        _open(page)


def _require_steps(analysed: Analysed, window: tuple[int | None, int | None]) -> None:
    """Raises UserError where the run has no step from the first on."""
    last = max((int(rank.times.step.max(initial=-1)) for each in analysed.attempts for rank in each.ranks), default=-1)
    if (window[0] or 0) > last >= 0:
        raise UserError(f"--step-range: the last step of the run is {last:,}, before {window[0]:,}")


def _require_known(instance: str) -> None:
    """Raises UserError for a type of machines that the catalogue does not have, whatever the format makes of it."""
    from ddlprof.instance_catalog import CatalogError, load

    try:
        load().instance(instance)
    except CatalogError as error:
        raise UserError(f"--instance: {error}") from None


def _page(run: list[str], out: list[str] | None) -> list[str]:
    """Where the page is written that is to be opened, unless `-o` says it."""
    if any(tells_format(text, ("html",)) for text in out or []):
        return []
    if "://" in run[0]:
        raise UserError(
            "--open: say where the page of a run that is not on this machine is written, as in -o page.html"
        )
    return [str(Path(run[0]) / "page.html")]


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        complain(f"no browser was found: open {page} in one")


def _show_goodput(run: list[str], out: list[str] | None, format: str | None, instance: str | None) -> None:
    from ddlprof.report.goodput import text
    from ddlprof.report.goodput.of_runs import goodput_of
    from ddlprof.report.json_csv import json_of

    destinations = wanted(out, format, GOODPUT_FORMATS, besides=" with --goodput")
    destinations.write({"table": text.render, "json": json_of}, goodput_of(run, instance))


def _steps(text: str | None) -> tuple[int | None, int | None]:
    """The bounds of `A:B`, either of which may be left out."""
    if text is None:
        return None, None
    first, colon, end = text.partition(":")
    if not colon or not all(bound == "" or (bound.isascii() and bound.isdigit()) for bound in (first, end)):
        raise UserError(f"--step-range {text!r}: give the first step and the one after the last, as in 100:110")
    bounds = int(first) if first else None, int(end) if end else None
    if bounds[1] is not None and bounds[1] <= (bounds[0] or 0):
        raise UserError(f"--step-range {text!r}: there is no step in it")
    return bounds
