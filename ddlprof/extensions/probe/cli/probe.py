"""`ddlprof probe`: what operators and links reach on this machine, for the user's own layer of the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError, naming
from ddlprof.cli.output import Out, format_option, wanted

if TYPE_CHECKING:
    from ddlprof.extensions.probe.model import Probed
    from ddlprof.extensions.probe.report import ProbeFacts

FORMATS = ("table", "json")
_LEAST_S, _MOST_S = 1.0, 3600.0


def probe(
    seconds: Annotated[
        float, typer.Option(metavar="N", min=_LEAST_S, max=_MOST_S, help="About how long to measure, without start-up.")
    ] = 30.0,
    instance: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Instance type of this machine [as its firmware tells, on EC2].")
    ] = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
    add: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure nothing: add the FILE.json that -o wrote elsewhere.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and show, but leave the catalogue as it is.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Measure what operators and links reach on this machine, for predictions of machines like it.

    Products in every precision, memory, copies, launches and collectives inside the machine; started on each of several
    machines with torchrun -m ddlprof probe, collectives between them too. The figures go into your own layer of the
    catalogue.
    """
    from ddlprof.extensions.probe import report
    from ddlprof.instance_catalog import CatalogError, load
    from ddlprof.report.json_csv import json_of

    destinations = wanted(out, format, FORMATS)
    catalog = load()
    if instance:
        instance = catalog.instance(instance).instance_type
    probed = _read(add, instance) if add else _measured(seconds, instance, quiet)
    if probed is None:
        return
    facts = report.facts_of(probed, catalog)
    if not probed.figures:
        raise UserError(f"nothing could be measured: {'; '.join(probed.missing)}")
    failure: CatalogError | None = None
    try:
        kept = None if dry_run else _keep(facts)
    except CatalogError as error:  # measuring took half a minute, so its results are shown even so
        kept, failure = None, error
    if not quiet or out:
        destinations.write({"table": lambda probed: report.render(probed, facts, kept), "json": json_of}, probed)
    if failure:
        raise UserError(f"not kept: {failure}")


def _keep(facts: ProbeFacts) -> str:
    """Adds the facts to the user's layer of the catalogue; returns where that is."""
    from ddlprof.instance_catalog import default_overlay
    from ddlprof.instance_catalog.overlay import add_links, add_reached

    overlay = default_overlay()
    add_reached(overlay, facts.to_keep)
    add_links(overlay, facts.links)
    return str(overlay)


def _measured(seconds: float, instance: str | None, quiet: bool) -> Probed | None:
    """Measures on this machine; returns None on all ranks of torchrun but the first."""
    from contextlib import nullcontext

    from ddlprof.base.torch_needed import require_torch
    from ddlprof.cli.screen import progress

    require_torch()
    from ddlprof.extensions.probe.collectives import RanksFailed
    from ddlprof.extensions.probe.measure import probe as measure

    try:
        with nullcontext() if quiet else progress("measuring") as advance:
            return measure(seconds, instance, advance)
    except RanksFailed as error:
        raise UserError(str(error)) from None


def _read(path: Path, instance: str | None) -> Probed:
    """Reads a file written by -o. Raises UserError for any other file."""
    from dataclasses import replace

    from ddlprof.base.reading import read_text
    from ddlprof.extensions.probe.report import MAX_FILE_BYTES, from_json

    with naming(path, "; make one with: ddlprof probe -o FILE.json"):
        probed = from_json(read_text(path, MAX_FILE_BYTES))
    return replace(probed, instance_type=instance or probed.instance_type)
