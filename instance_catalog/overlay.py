"""The user's overlay over the embedded snapshot: its place, and how it is read, written and merged.

A directory with any of `instances.csv`, `prices.csv` (written by a refresh), `links.csv` (measured by the user) and
`reached.csv` (measured by `ddlprof probe`). It is never inside the package. The newer fact counts: prices row by row,
facts of a type field by field, so that empty cells of an API erase nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ddlprof.base.files import user_directory
from ddlprof.instance_catalog import table
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.records import InstanceType, LinkFact, Price, Reached

INSTANCES = "instances.csv"
PRICES = "prices.csv"
LINKS = "links.csv"
REACHED = "reached.csv"


@dataclass(frozen=True)
class Overlay:
    """The contents of an overlay directory."""

    instances: tuple[InstanceType, ...] = ()
    prices: tuple[Price, ...] = ()
    links: tuple[LinkFact, ...] = ()
    reached: tuple[Reached, ...] = ()


def default_overlay() -> Path:
    """`$DDLPROF_CATALOG`, else `ddlprof/catalog` in the user's data directory. It may not exist."""
    chosen = os.environ.get("DDLPROF_CATALOG")
    if chosen:
        try:
            return Path(chosen).expanduser()
        except RuntimeError:  # ~NAME of an unknown user
            return Path(chosen)
    return user_directory("XDG_DATA_HOME", "~/.local/share") / "catalog"


def read_overlay(directory: Path) -> Overlay:
    """The overlay. Missing files count as empty. Raises CatalogError that names file and line of damage."""
    return Overlay(
        tuple(_read(directory / INSTANCES, InstanceType)),
        tuple(_read(directory / PRICES, Price)),
        tuple(_read(directory / LINKS, LinkFact)),
        tuple(_read(directory / REACHED, Reached)),
    )


def write_instances(directory: Path, rows: Iterable[InstanceType]) -> None:
    """Replaces `instances.csv` atomically. Raises CatalogError if it cannot be written."""
    table.write(directory / INSTANCES, sorted(rows, key=_instance_key), InstanceType)


def write_prices(directory: Path, rows: Iterable[Price]) -> None:
    """Replaces `prices.csv` atomically. Raises CatalogError if it cannot be written."""
    table.write(directory / PRICES, sorted(rows, key=_price_key), Price)


def add_links(directory: Path, facts: Iterable[LinkFact]) -> None:
    """Adds measurements to `links.csv` atomically. One by the same source as before replaces the old one."""
    held = {(f.machine, f.what, f.source): f for f in _read(directory / LINKS, LinkFact)}
    held |= {(f.machine, f.what, f.source): f for f in facts}
    table.write(directory / LINKS, [held[key] for key in sorted(held)], LinkFact)


def add_reached(directory: Path, rows: Iterable[Reached]) -> None:
    """Adds probes to `reached.csv` atomically. One of the same GPU and type of machine replaces the old one."""
    held = {(row.gpu_model, row.instance_type): row for row in _read(directory / REACHED, Reached)}
    held |= {(row.gpu_model, row.instance_type): row for row in rows}
    table.write(directory / REACHED, [held[key] for key in sorted(held)], Reached)


def merge_instances(known: Iterable[InstanceType], newer: Iterable[InstanceType]) -> list[InstanceType]:
    """One row for each type, merged field by field: the row with the later `spec_as_of` counts, on a tie `newer`."""
    merged = {_instance_key(row): row for row in known}
    for row in newer:
        key = _instance_key(row)
        merged[key] = _combine(merged[key], row) if key in merged else row
    return list(merged.values())


def merge_prices(known: Iterable[Price], newer: Iterable[Price]) -> list[Price]:
    """One row for each cloud, region, type and pricing.

    A price that was read counts before one that was assumed, then the later date, then `newer`.
    """
    merged = {_price_key(row): row for row in known}
    for row in newer:
        held = merged.get(_price_key(row))
        if held is None or _trust(row) >= _trust(held):
            merged[_price_key(row)] = row
    return list(merged.values())


def _read(path: Path, record: type[table.Record]) -> list[table.Record]:
    try:
        path.lstat()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return table.read(path, record)


def _instance_key(row: InstanceType) -> tuple[str, str]:
    return row.cloud, row.instance_type


def _price_key(row: Price) -> tuple[str, str, str, str]:
    return row.cloud, row.region, row.instance_type, row.pricing


def _trust(price: Price) -> tuple[bool, str]:
    return not price.assumed, price.as_of


def _combine(first: InstanceType, second: InstanceType) -> InstanceType:
    old, new = (second, first) if second.spec_as_of < first.spec_as_of else (first, second)
    facts = {field.name: getattr(new, field.name) for field in fields(new)}
    told = {name: value for name, value in facts.items() if value is not None and value not in ("", ())}
    sources = dict.fromkeys([*new.source.split(";"), *old.source.split(";")])
    return replace(old, **{**told, "source": ";".join(source for source in sources if source)})
