"""What a list of runs says of each: hours and dollars, where they went, and what changed since the job's last run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddlprof.analysis.compare import ERROR, FASTER, SLOWER, between_runs, shift
from ddlprof.analysis.uncertainty import Estimate
from ddlprof.base.units import scale_for
from ddlprof.model.classes import CLASSES, STALLS
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.fleet.entries import Entry
from instance_catalog import Catalog, CatalogError, Price

OUTSIDE = "outside_steps"
"""What is in no class of a step: start-up, evaluation, checkpoints, waiting between steps."""
LOST = (*STALLS, OUTSIDE)
"""What time can be lost to; the parts of a class beside it."""
WHOLE = (*(name for name in LOST if name in CLASSES), OUTSIDE)
"""Those of them that are no part of another."""


@dataclass(frozen=True)
class Change:
    """Something that is not as it was in the last run of the same job."""

    what: str
    was: Any
    now: Any
    words: str


@dataclass(frozen=True)
class Row:
    """One run with its costs. None: not known, or not measured."""

    entry: Entry
    price: Price | None
    usd: float | None
    hours: dict[str, float | None]
    """The hours of all ranks lost to each of `LOST`."""
    lost_usd: dict[str, float | None]
    changes: tuple[Change, ...]

    @property
    def summary(self) -> RunSummary:
        """The run's summary."""
        return self.entry.summary

    @property
    def lost_hours(self) -> float | None:
        """The hours of all ranks lost to anything."""
        return _sum(self.hours[name] for name in WHOLE)


def rows_of(entries: Sequence[Entry], catalog: Catalog, instance: str | None = None) -> list[Row]:
    """The rows by the time they began. `instance` is the type of machines whose type is not known.

    Raises CatalogError if it is not in the catalogue.
    """
    if instance is not None:
        catalog.instance(instance)
    price = _prices(catalog, instance)
    rows = []
    last: dict[str, RunSummary] = {}
    for entry in sorted(entries, key=lambda entry: (entry.summary.created_unix_ns, entry.path)):
        summary = entry.summary
        rows.append(_row(entry, price(summary.instance_type), changes(last.get(summary.job), summary)))
        if summary.step_s is not None:
            last[summary.job] = summary
    return rows


def _prices(catalog: Catalog, instance: str | None) -> Callable[[str | None], Price | None]:
    known: dict[str | None, Price | None] = {}

    def price(instance_type: str | None) -> Price | None:
        if instance_type not in known:
            try:
                wanted = instance_type or instance
                known[instance_type] = catalog.price(wanted) if wanted else None
            except CatalogError:
                known[instance_type] = None
        return known[instance_type]

    return price


def _row(entry: Entry, price: Price | None, changed: tuple[Change, ...]) -> Row:
    summary = entry.summary
    hours: dict[str, float | None] = {name: summary.class_rank_hours.get(name) for name in STALLS}
    inside = _sum(summary.class_rank_hours.get(name) for name in CLASSES)
    known = summary.rank_hours is not None and inside is not None
    hours[OUTSIDE] = max((summary.rank_hours or 0.0) - (inside or 0.0), 0.0) if known else None
    usd = price.usd_per_hour * summary.machine_hours if price and summary.machine_hours is not None else None
    per_hour = usd / summary.rank_hours if usd is not None and summary.rank_hours else None
    lost = {
        name: value * per_hour if value is not None and per_hour is not None else None for name, value in hours.items()
    }
    return Row(entry, price, usd, hours, lost, changed)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def changes(was: RunSummary | None, now: RunSummary) -> tuple[Change, ...]:
    """What is not as it was; of what one of the two does not tell, nothing is said."""
    if was is None:
        return ()
    found = [*_step(was, now)]
    facts = {
        "verdict": "verdict", "model": "model", "batch": "global_batch", "precision": "precision",
        "strategy": "strategy", "ranks": "world_size", "hosts": "hosts", "device": "device",
        "machine": "instance_type",
    }  # fmt: skip
    for what, name in facts.items():
        before, after = getattr(was, name), getattr(now, name)
        if before and after and before != after:
            found.append(Change(what, before, after, f"{what} {after}, was {before}"))
    for package in sorted(was.versions.keys() & now.versions.keys()):
        before, after = was.versions[package], now.versions[package]
        if before != after:
            found.append(Change(package, before, after, f"{package} {after}, was {before}"))
    if was.arguments and now.arguments and was.arguments != now.arguments:
        found.append(Change("arguments", was.arguments, now.arguments, "other arguments"))
    return tuple(found)


def _step(was: RunSummary, now: RunSummary) -> Iterable[Change]:
    """The mean step, where the difference is more than noise, as `ddlprof compare` tells it."""
    found = shift(_estimates(was), _estimates(now), ERROR)
    if found is None or not was.step_s or found.word not in (FASTER, SLOWER):
        return
    scale = scale_for(was.step_s)
    words = f"step {100 * found.ns / 1e9 / was.step_s:+.0f} %, was {scale.time(was.step_s)}"
    yield Change("step", was.step_s, now.step_s, words)


def _estimates(run: RunSummary) -> list[Estimate] | None:
    """The mean step in nanoseconds, with what its steps tell of its error, and what runs differ by."""
    if run.step_s is None or run.step_error_s is None or run.step_noise is None or (run.step_error_freedom or 0) < 1:
        return None
    step_ns = run.step_s * 1e9
    own = Estimate(step_ns, (run.step_error_s * 1e9) ** 2, run.step_error_freedom or 1.0)
    return [own, between_runs(run.step_noise, step_ns, step_ns)]
