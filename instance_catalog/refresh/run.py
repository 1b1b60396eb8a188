"""A whole refresh: regions are queried, answers checked, and accepted rows written at the very end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ddlprof.instance_catalog.catalog import Catalog
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.loading import load
from ddlprof.instance_catalog.overlay import (
    INSTANCES,
    PRICES,
    merge_instances,
    merge_prices,
    read_overlay,
    write_instances,
    write_prices,
)
from ddlprof.instance_catalog.records import PRICINGS, InstanceType, Price
from ddlprof.instance_catalog.refresh import checks
from ddlprof.instance_catalog.refresh.fetch import Deadline, RegionAnswers, bounded, fetch
from ddlprof.instance_catalog.refresh.providers.aws import Aws
from ddlprof.instance_catalog.refresh.providers.base import CallFailed, Connect, Origin, Provider
from ddlprof.instance_catalog.refresh.report import KINDS, Contradiction, Move, RefreshOutcome, RefreshReport

TIMEOUT_S = 120.0
"""Seconds for a whole refresh. One region takes about ten seconds, and regions are queried at the same time."""
_API = "api"
PROVIDERS: dict[str, Connect] = {
    Aws.name: Aws,
}
"""The providers by the catalogue's name of the cloud. A provider imports its libraries when it is made."""


class Accepted(NamedTuple):
    """The accepted part of the answers, which is written."""

    instances: dict[str, InstanceType]
    """The accepted rows by instance type."""
    prices: list[Price]
    counts: dict[tuple[str, str], int]
    """The number of accepted rows by region and kind."""
    contradictions: list[Contradiction]
    moves: list[Move]


def refresh(
    regions: Sequence[str],
    overlay: Path,
    *,
    instance_types: Sequence[str] = (),
    cloud: str = "aws",
    profile: str | None = None,
    provider: Provider | None = None,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    now: datetime | None = None,
) -> RefreshReport:
    """Fetches facts and prices of NVIDIA machines in `regions` and writes them to the directory `overlay`.

    Without regions it uses that of the cloud's configuration. `instance_types`: names, which may contain `*` and `?`
    (`g5.*`); none means all GPU types. `cloud`: one of `PROVIDERS`; `profile`: one in its configuration; `provider`
    replaces both. Calls that are not answered within `timeout_s` seconds count as failed. `on_progress(done, total)`
    counts calls; it is called by other threads, one at a time.

    Raises CatalogError of one line, and writes nothing, if the configuration is wrong or every call failed. If only
    some calls failed, each is a `RefreshOutcome` with an error, and its old rows and dates are kept.
    """
    if provider is None and cloud not in PROVIDERS:
        raise CatalogError(f"facts and prices of {cloud!r} cannot be fetched; known: {', '.join(PROVIDERS)}")
    deadline = Deadline(timeout_s)
    now = now or datetime.now(timezone.utc)
    catalog = load(overlay)
    provider, regions = _connect(provider, cloud, profile, regions, deadline)
    names = tuple(instance_types) or provider.gpu_types
    known = [row.instance_type for row in _known(catalog, provider.name, names) if row.offered is not False]
    answers = fetch(provider, regions, names, known, now, on_progress, deadline)
    if all(len(answer.errors) == len(KINDS) for answer in answers):
        first = answers[0]
        raise CatalogError(f"nothing was refreshed, all calls failed: {first.errors[KINDS[0]]} ({first.region})")
    accepted = accept(answers, catalog, provider, names, as_of=now.date().isoformat())
    return RefreshReport(
        outcomes=tuple(_outcomes(answers, accepted)),
        contradictions=tuple(accepted.contradictions),
        files=write(overlay, accepted.instances.values(), accepted.prices),
        moves=tuple(accepted.moves),
    )


def _connect(
    provider: Provider | None, cloud: str, profile: str | None, regions: Sequence[str], deadline: Deadline
) -> tuple[Provider, tuple[str, ...]]:
    """Makes the provider. Signing in may take a call of its own."""

    def connect() -> tuple[Provider, tuple[str, ...]]:
        connected = provider or PROVIDERS[cloud](profile)
        return connected, connected.regions(regions)

    try:
        return bounded(connect, deadline)
    except CallFailed as failure:
        raise CatalogError(f"nothing was refreshed, signing in failed: {failure}") from None


def accept(
    answers: Sequence[RegionAnswers], catalog: Catalog, provider: Origin, names: Sequence[str], as_of: str
) -> Accepted:
    """The part of the answers that does not contradict `catalog`. `names` may contain `*` and `?`."""
    accepted = Accepted({}, [], {}, [], [])
    for answer in answers:
        _accept_types(answer, catalog, provider, as_of, accepted)
    known = _known(catalog, provider.name, names)
    _accept_offerings(answers, known, accepted)
    wanted = {row.instance_type for row in known} | set(accepted.instances)
    for answer in answers:
        _accept_prices(answer, catalog, provider, wanted, as_of, accepted)
    return accepted


def _accept_types(answers: RegionAnswers, catalog: Catalog, provider: Origin, as_of: str, accepted: Accepted) -> None:
    """Accepts types. A type is equal in all regions, so its first answer counts."""
    said = {(doubt.instance_type, doubt.field, doubt.answered) for doubt in accepted.contradictions}
    rows = 0
    for answer in answers.types or ():
        row, doubts = checks.check_type(answer, catalog, provider, answers.region, as_of)
        if row is not None:
            rows += 1
            accepted.instances.setdefault(answer.instance_type, row)
        accepted.contradictions.extend(
            doubt for doubt in doubts if (doubt.instance_type, doubt.field, doubt.answered) not in said
        )
    accepted.counts[answers.region, "types"] = rows


def _accept_offerings(answers: Sequence[RegionAnswers], known: Sequence[InstanceType], accepted: Accepted) -> None:
    """Adds regions that were asked to each type's regions, or removes them. Other regions do not change."""
    offered = {answer.region: answer.offerings for answer in answers if answer.offerings is not None}
    held = {row.instance_type: row for row in known}
    for name in dict.fromkeys([*held, *accepted.instances]) if offered else ():
        old = held.get(name)
        before = frozenset(old.offered_regions) if old is not None else frozenset()
        regions = (before - offered.keys()) | {region for region, names in offered.items() if name in names}
        if regions != before or name in accepted.instances:
            row = accepted.instances.get(name) or _bare(held[name])
            offer = True if regions else _without_regions(old)
            accepted.instances[name] = replace(row, offered=offer, offered_regions=tuple(sorted(regions)))
    for region, names in offered.items():
        accepted.counts[region, "offerings"] = len(names & accepted.instances.keys() | names & held.keys())


def _without_regions(known: InstanceType | None) -> bool | None:
    """Whether a type without any region is still on offer: False if one of the regions asked had it before."""
    if known is None:
        return None
    return False if known.offered_regions else known.offered


def _bare(known: InstanceType) -> InstanceType:
    """A row with only the type's name, and the date since when that is known."""
    names = "cloud instance_type family gpu_model gpus gpu_fraction spec_as_of"
    return InstanceType(**{name: getattr(known, name) for name in names.split()})


def _accept_prices(
    answers: RegionAnswers, catalog: Catalog, provider: Origin, wanted: set[str], as_of: str, accepted: Accepted
) -> None:
    """Accepts prices, on-demand prices first, as spot prices are compared with them."""
    region, cloud = answers.region, provider.name
    held = [price for price in catalog.prices if price.cloud == cloud]
    here = {
        pricing: {p.instance_type: p for p in held if (p.region, p.pricing) == (region, pricing)}
        for pricing in PRICINGS
    }
    on_demand, doubts = checks.check_on_demand(_only(answers.on_demand, wanted), here["on_demand"], region)
    full = _lowest(p for p in held if p.pricing == "on_demand")
    full |= {name: price.usd_per_hour for name, price in here["on_demand"].items()} | on_demand
    spot, spot_doubts = checks.check_spot(_only(answers.spot, wanted), full, here["spot"], region)
    accepted.contradictions.extend([*doubts, *spot_doubts])
    for pricing, prices in (("on_demand", on_demand), ("spot", spot)):
        accepted.counts[region, pricing] = len(prices)
        accepted.moves.extend(checks.moves(prices, here[pricing], region, pricing))
        accepted.prices.extend(
            Price(cloud, region, name, pricing, usd_per_hour, as_of, basis=_API, source=provider.sources[pricing])
            for name, usd_per_hour in prices.items()
        )


def _only(prices: Mapping[str, float] | None, wanted: set[str]) -> dict[str, float]:
    return {name: price for name, price in (prices or {}).items() if name in wanted}


def _lowest(prices: Iterable[Price]) -> dict[str, float]:
    lowest: dict[str, float] = {}
    for price in prices:
        lowest[price.instance_type] = min(price.usd_per_hour, lowest.get(price.instance_type, price.usd_per_hour))
    return lowest


def _known(catalog: Catalog, cloud: str, names: Sequence[str]) -> list[InstanceType]:
    """The cloud's types that match one of the names, which may contain `*` and `?`."""
    rows = [row for row in catalog.instances if row.cloud == cloud]
    return [row for row in rows if any(fnmatchcase(row.instance_type, name) for name in names)]


def _outcomes(answers: Iterable[RegionAnswers], accepted: Accepted) -> Iterable[RefreshOutcome]:
    for answer in answers:
        for kind in KINDS:
            error = answer.errors.get(kind)
            yield RefreshOutcome(
                answer.region, kind, 0 if error else accepted.counts.get((answer.region, kind), 0), error
            )


def write(overlay: Path, instances: Collection[InstanceType], prices: Collection[Price]) -> tuple[Path, ...]:
    """Adds to the overlay. Types are written first, so that after a failure no price is of an unknown type."""
    old = read_overlay(overlay)
    written = []
    if instances:
        write_instances(overlay, merge_instances(old.instances, instances))
        written.append(overlay / INSTANCES)
    if prices:
        write_prices(overlay, merge_prices(old.prices, prices))
        written.append(overlay / PRICES)
    return tuple(written)
