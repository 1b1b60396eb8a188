"""`ddlprof instances`: the catalogue of machines that can be rented, one of them in full, and what users add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlprof.base.errors import UserError, complain
from ddlprof.cli.options import names_in
from ddlprof.cli.output import TABLE, Out, Wanted, format_option, wanted

if TYPE_CHECKING:
    from ddlprof.instance_catalog import Catalog, LinkFact
    from ddlprof.report.machines.listing import InstanceRow

FORMATS = ("table", "json", "csv")
"""Formats of the list, and of measured links."""
PAGE_FORMATS = ("table", "json")
"""Formats of the page about one type, and of a refresh."""
_FULL_WIDTH = 160  # the width of a file or a pipe
_NOTHING_FOUND = 1
_PARTLY_REFRESHED = 1

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def instances(
    context: typer.Context,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Types with this GPU, in any spelling: A100 means all variants.")
    ] = None,
    cloud: Annotated[
        str | None, typer.Option(parser=str.lower, metavar="C", help="Types of this cloud, such as aws.")
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="R", help="Types known to be in this region, with its prices [one region of each cloud]."),
    ] = None,
    min_gpu_memory: Annotated[
        float | None, typer.Option(metavar="GIB", min=0, help="Types with at least this much memory on each GPU.")
    ] = None,
    min_gpus: Annotated[int | None, typer.Option(metavar="N", min=0, help="Types with N or more whole GPUs.")] = None,
    max_price: Annotated[
        float | None, typer.Option(metavar="USD", min=0, help="Types known to cost at most this an hour on demand.")
    ] = None,
    efa: Annotated[bool, typer.Option("--efa", help="Types with an Elastic Fabric Adapter (aws).")] = False,
    offered: Annotated[bool, typer.Option("--offered", help="Leave out retired types.")] = False,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:
    """List the cloud machines with GPUs: what they have and what they cost."""
    if context.invoked_subcommand is not None:
        _refuse_filters(context)
        return
    from ddlprof.instance_catalog import load
    from ddlprof.report.machines.listing import as_csv, as_json, as_table, rows_of

    destinations = wanted(out, format, FORMATS)
    catalog = load()
    queries = {
        "gpu": gpu,
        "cloud": cloud,
        "region": region,
        "min_gpu_memory_gib": min_gpu_memory,
        "min_gpus": min_gpus,
        "include_retired": False if offered else None,
    }
    filters = [_query(catalog, name, value) for name, value in queries.items() if value is not None]
    filters += [_Filter("--efa", lambda row: row.machine.efa is True)] if efa else []
    filters += [_at_most(max_price)] if max_price is not None else []
    rows, why_none = _filtered(rows_of(catalog, catalog.instances, region), filters)
    destinations.write(
        {TABLE: lambda rows: as_table(rows, _width(destinations)) if rows else "", "json": as_json, "csv": as_csv}, rows
    )
    if why_none:
        complain(why_none)
        raise typer.Exit(_NOTHING_FOUND)


@app.command()
def show(
    instance_type: Annotated[
        str, typer.Argument(metavar="TYPE", help="Name of the type at its cloud, such as p4d.24xlarge.")
    ],
    cloud: Annotated[
        str | None, typer.Option(parser=str.lower, metavar="C", help="Cloud of the type, if two clouds use the name.")
    ] = None,
    out: Out = None,
    format: Annotated[str | None, format_option(PAGE_FORMATS)] = None,
) -> None:
    """Show all that is known about one type, with sources."""
    from ddlprof.instance_catalog import load
    from ddlprof.report.machines.show import as_json, as_text, build_page

    destinations = wanted(out, format, PAGE_FORMATS)
    catalog = load()
    page = build_page(catalog, catalog.instance(instance_type, cloud))
    destinations.write({TABLE: lambda page: as_text(page, _width(destinations)), "json": as_json}, page)


@app.command()
def refresh(
    region: Annotated[
        list[str] | None,
        typer.Option(metavar="R,...", help="Regions to ask about; without --cloud those of your AWS account."),
    ] = None,
    cloud: Annotated[
        str | None,
        typer.Option(parser=str.lower, metavar="C", help="aws: your account there. any, gcp, ...: published prices."),
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="Profile in your AWS configuration.")] = None,
    instance: Annotated[
        list[str] | None, typer.Option(metavar="TYPE,...", help="Only these types; g5.* means all g5 types.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Most time that all calls together may take.")] = "2m",
    out: Out = None,
    format: Annotated[str | None, format_option(PAGE_FORMATS)] = None,
) -> None:
    """Fetch newer prices.

    Without options they are those of all clouds that dstack's gpuhunt publishes daily, without an account. --region,
    --profile or --cloud aws ask AWS through your account, which has the facts of its machines, too.

    They go into your own layer of the catalogue; what cannot be fetched keeps its old date. The exit code is 0 if
    everything was fetched, 1 if only a part was, 2 if nothing was.
    """
    from ddlprof.base.units import parse_duration
    from ddlprof.cli.screen import progress
    from ddlprof.instance_catalog import default_overlay
    from ddlprof.instance_catalog.catalog import ANY_CLOUD
    from ddlprof.instance_catalog.refresh import PROVIDERS, refresh_published
    from ddlprof.instance_catalog.refresh import refresh as ask
    from ddlprof.report.machines.changes import refreshed, refreshed_as_json

    destinations = wanted(out, format, PAGE_FORMATS)
    cloud = cloud or ("aws" if region or profile else ANY_CLOUD)
    regions, types = names_in(",".join(region or [])), names_in(",".join(instance or []))
    limits: dict[str, Any] = {"instance_types": types, "timeout_s": parse_duration(timeout, "--timeout")}
    if profile and cloud not in PROVIDERS:
        raise UserError(f"--profile is for --cloud {' or '.join(PROVIDERS)}: published prices need no account")
    overlay = default_overlay()
    with progress("refreshing") as advance:
        if cloud in PROVIDERS:
            report = ask(regions, overlay, cloud=cloud, profile=profile, on_progress=advance, **limits)
        else:
            clouds = () if cloud == ANY_CLOUD else (cloud,)
            report = refresh_published(overlay, clouds=clouds, regions=regions, on_progress=advance, **limits)
    destinations.write({TABLE: refreshed, "json": refreshed_as_json}, report)
    if not report.ok:
        raise typer.Exit(_PARTLY_REFRESHED)


@app.command()
def measured(
    instance: Annotated[str, typer.Option(metavar="TYPE", help="Type that was measured.")],
    run: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs on that type, whose measured links are added.")
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=GBPS", help="A figure of your own in Gbit/s, which replaces the one in the table."),
    ] = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:
    """Add the speeds that the links of a machine reached.

    They go into your own layer of the catalogue, which takes precedence over the tables.
    """
    from ddlprof.instance_catalog import default_overlay, load
    from ddlprof.instance_catalog.overlay import add_links
    from ddlprof.report.machines.changes import LINKS, added, added_as_json

    destinations = wanted(out, format, FORMATS)
    if not run and not fact:
        raise UserError("nothing to add: name a run, or --fact NAME=GBPS")
    machine = load().instance(instance).instance_type
    facts = [*(_run_facts(run, machine) if run else []), *(_own_fact(text, machine) for text in fact or [])]
    overlay = default_overlay()
    add_links(overlay, facts)
    destinations.write(
        {
            TABLE: lambda facts: added(facts, overlay),
            "json": lambda facts: added_as_json(facts, overlay),
            "csv": LINKS.csv,
        },
        facts,
    )


@dataclass(frozen=True)
class _Filter:
    option: str
    """The option as the user types it."""
    keeps: Callable[[InstanceRow], bool]


def _query(catalog: Catalog, name: str, value: Any) -> _Filter:
    """The machines that the catalogue itself selects. Raises CatalogError for a name it does not know."""
    kept = {(machine.cloud, machine.instance_type) for machine in catalog.select(**{name: value})}
    option = "--offered" if value is False else f"--{name.removesuffix('_gib').replace('_', '-')} {value}"
    return _Filter(option, lambda row: (row.machine.cloud, row.machine.instance_type) in kept)


def _at_most(usd_per_hour: float) -> _Filter:
    def keeps(row: InstanceRow) -> bool:
        return row.on_demand is not None and row.on_demand.usd_per_hour <= usd_per_hour

    return _Filter(f"--max-price {usd_per_hour:g}", keeps)


def _filtered(rows: list[InstanceRow], filters: list[_Filter]) -> tuple[list[InstanceRow], str | None]:
    """The rows that pass the filters, and, where none do, the filter that no row passed."""
    before: list[str] = []
    for each in filters:
        left = [row for row in rows if each.keeps(row)]
        if not left:
            of = f" that {' '.join(before)} leaves" if before else ""
            return [], f"no instance type is left: {each.option} excludes all {len(rows)}{of}"
        before.append(each.option)
        rows = left
    return rows, None


def _refuse_filters(context: typer.Context) -> None:
    """Raises UserError for `ddlprof instances --gpu A100 show X`, whose option would be ignored silently."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise UserError(f"--{option} is for the list: leave it out, or put it behind {context.invoked_subcommand}")


def _run_facts(run: list[str], machine: str) -> list[LinkFact]:
    from datetime import datetime, timezone

    from ddlprof.analysis.links import achieved_links
    from ddlprof.analysis.run import analyse, headline_attempt
    from ddlprof.cli.screen import progress
    from ddlprof.instance_catalog import LinkFact
    from ddlprof.store import load_run

    with progress("reading") as advance:
        data = load_run(run, advance)
    attempt = headline_attempt(analyse(data))
    backend = data.manifest.training.backend if data.manifest else None
    links = achieved_links(attempt, backend or "unknown") if attempt else []
    if not links:
        raise UserError(
            f"{data.typed} timed no links: it needs two ranks on one machine (gloo, without --no-calibrate) "
            "or all-reduces of 1 MiB and more between machines"
        )
    day = datetime.fromtimestamp(data.origin_unix_ns / 1e9, timezone.utc).date().isoformat()
    return [LinkFact(machine, link.what, link.value, link.unit, day, data.typed, link.notes) for link in links]


def _own_fact(text: str, machine: str) -> LinkFact:
    from datetime import datetime, timezone

    from ddlprof.instance_catalog import LinkFact
    from ddlprof.instance_catalog.loading import MEASURED_FIELDS

    name, _, value = (part.strip() for part in text.partition("="))
    try:
        gbps = float(value)
    except ValueError:
        gbps = 0.0
    if name not in MEASURED_FIELDS or not 0 < gbps < float("inf"):
        raise UserError(f"--fact {text}: write one of {', '.join(MEASURED_FIELDS)}, = and Gbit/s above 0")
    day = datetime.now(timezone.utc).date().isoformat()
    return LinkFact(machine, name, gbps, "Gbit/s", day, "your own figure")


def _width(destinations: Wanted) -> int:
    import shutil

    return _FULL_WIDTH if destinations.has_files_only else shutil.get_terminal_size((_FULL_WIDTH, 0)).columns
