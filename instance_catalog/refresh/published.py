"""A refresh of all clouds without an account: from the prices that others publish, checked as a cloud's own are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from ddlprof.instance_catalog.catalog import Catalog
from ddlprof.instance_catalog.clouds import ANY_REGION
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.loading import load
from ddlprof.instance_catalog.refresh.fetch import CallProgress, Deadline, RegionAnswers, bounded, in_thread
from ddlprof.instance_catalog.refresh.providers.base import Allowance, CallFailed
from ddlprof.instance_catalog.refresh.providers.gpuhunt import CLOUDS, Gpuhunt
from ddlprof.instance_catalog.refresh.report import RefreshOutcome, RefreshReport
from ddlprof.instance_catalog.refresh.run import TIMEOUT_S, Accepted, accept, write

NOTES = "GPU, vCPUs and memory as gpuhunt publishes them; links and network are not known"
"""The mark of a machine that only the published catalogue describes."""


def refresh_published(
    overlay: Path,
    *,
    clouds: Sequence[str] = (),
    regions: Sequence[str] = (),
    instance_types: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    now: datetime | None = None,
) -> RefreshReport:
    """Writes the prices that gpuhunt publishes to the directory `overlay`. It needs no account.

    `clouds`: some of `gpuhunt.CLOUDS`; none means all. `regions`: none means those of which the catalogue knows
    anything. The rest is as in `refresh`, but an outcome is one cloud.

    Raises CatalogError of one line, and writes nothing, for an unknown cloud, or if nothing could be had.
    """
    for cloud in clouds:
        if cloud not in CLOUDS:
            raise CatalogError(f"no prices of {cloud!r} are published; known: any, {', '.join(sorted(CLOUDS))}")
    deadline, catalog = Deadline(timeout_s), load(overlay)
    names = tuple(instance_types) or ("*",)
    origins = [Gpuhunt(cloud, names, now or datetime.now(timezone.utc)) for cloud in clouds or sorted(CLOUDS)]
    progress = CallProgress(on_progress, len(origins))
    answers = [in_thread(partial(_read, origin, catalog, regions, deadline, progress)) for origin in origins]
    outcomes: list[RefreshOutcome] = []
    accepted: list[Accepted] = []
    for origin, answer in zip(origins, answers, strict=True):
        try:
            found = accept(answer.result(), catalog, origin, names, origin.as_of)
        except CallFailed as failure:
            outcomes.append(RefreshOutcome(ANY_REGION, "prices", 0, str(failure), origin.name))
            continue
        outcomes.append(RefreshOutcome(ANY_REGION, "prices", len(found.prices), cloud=origin.name))
        accepted.append(found)
    instances = [replace(row, notes=NOTES) for found in accepted for row in found.instances.values()]
    prices = [price for found in accepted for price in found.prices]
    if not prices:
        why = next((each.error for each in outcomes if each.error), "none are published of these regions and types")
        raise CatalogError(f"no prices were refreshed: {why}")
    return RefreshReport(
        outcomes=tuple(outcomes),
        contradictions=tuple(each for found in accepted for each in found.contradictions),
        files=write(overlay, instances, prices),
        moves=tuple(move for found in accepted for move in found.moves),
        added=tuple(f"{row.cloud} {row.instance_type}" for row in instances),
        left_out=tuple(f"{origin.name} {name}" for origin in origins for name in sorted(origin.left_out)),
    )


def _read(
    origin: Gpuhunt, catalog: Catalog, regions: Sequence[str], deadline: Deadline, progress: CallProgress
) -> list[RegionAnswers]:
    """The prices of each region. The first one has the types, which are the same in all."""
    allowance = Allowance()
    try:
        bounded(partial(origin.read, catalog, regions, allowance), deadline, allowance)
    finally:
        progress.advance()
    types = [list(origin.types.values())]
    return [
        RegionAnswers(region, types.pop() if types else None, on_demand=prices[False], spot=prices[True])
        for region, prices in sorted(origin.prices.items())
    ]
