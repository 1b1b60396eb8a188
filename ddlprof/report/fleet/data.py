"""All runs of a search: the summary of each, what it cost, and what changed since the job's last run.

A run without a saved summary is loaded for one, or looked at only: its manifest and the end of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ddlprof.analysis.compare import ERROR
from ddlprof.analysis.goodput import Goodput, goodput
from ddlprof.analysis.run import analyse
from ddlprof.analysis.shifts import FASTER, SLOWER, Side, shift
from ddlprof.analysis.uncertainty import MeanEstimate
from ddlprof.base.errors import DdlprofError
from ddlprof.base.text import without_credentials
from ddlprof.base.units import scale_for
from ddlprof.instance_catalog import Catalog, CatalogError, Price
from ddlprof.model.classes import CLASSES, STALLS
from ddlprof.model.run_summary import SUMMARY_NAME, RunSummary
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import load_run
from ddlprof.store.fleet import FoundRun, Search, pieces
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.run_summary import MAX_SUMMARY_BYTES, decode_summary, peek

MOST_LOADED_BYTES = 64 << 20
"""A run with more bytes is not loaded for a list, as that takes seconds."""
SAVED, OUTDATED, LOADED, GLANCE = "saved", "outdated", "loaded", "glance"

Progress = Callable[[int, int], None]
"""`progress(runs done, runs in all)`."""
OUTSIDE = "outside_steps"
"""The time that is in no step: start-up, evaluation, checkpoints, waiting between steps."""
LOST = (*STALLS, OUTSIDE)
"""The names under which time is lost: classes of stalls, their parts, and the time outside of steps."""
WHOLE = (*(name for name in LOST if name in CLASSES), OUTSIDE)
"""The names of `LOST` that are not a part of another one, so their times add up."""


@dataclass(frozen=True)
class Entry:
    """One run of the list."""

    path: str
    summary: RunSummary
    source: str
    """Where the summary is from. saved: its file; outdated: its file, but the run has grown since; loaded: made from
    the steps now; glance: the manifest and the end of one rank, without times of steps."""


@dataclass(frozen=True)
class Entries:
    """All distinct runs, and a line for each thing that was left out."""

    entries: list[Entry]
    left_out: list[str] = field(default_factory=list)


def entries_of(search: Search, load: int, now_unix_ns: int, progress: Progress | None = None) -> Entries:
    """The summaries of the runs; up to `load` of those without one that is up to date are loaded for it."""
    found: list[Entry] = []
    broken: list[str] = []
    saved = [run for run in search.runs if SUMMARY_NAME in run.files]
    summaries = pieces(search, [(run, SUMMARY_NAME) for run in saved], MAX_SUMMARY_BYTES + 1)
    by_path = {run.path: content for run, content in zip(saved, summaries, strict=True)}
    loaded = 0
    for number, run in enumerate(search.runs, 1):
        entry = None
        if content := by_path.get(run.path):
            entry = _saved(run, content)
        wanted = entry is None or entry.source == OUTDATED
        if wanted and loaded < load and 0 < run.rank_bytes <= MOST_LOADED_BYTES:
            loaded += 1
            entry = _loaded(run, now_unix_ns) or entry
        try:
            found.append(entry or Entry(run.path, peek(search.folder, run), GLANCE))
        except (DdlprofError, *DAMAGE) as error:
            broken.append(f"{without_credentials(run.path)}: {error}")
        if progress:
            progress(number, len(search.runs))
    kept = _once(found)
    said = [*search.left_out]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        said.append(f"not read: {broken[0]}{more}")
    if len(found) > len(kept):
        said.append(f"directories with copies or other ranks of a run in the list: {len(found) - len(kept)}")
    return Entries(kept, said)


def _saved(run: FoundRun, content: bytes | ValueError) -> Entry | None:
    try:
        summary = decode_summary(content)  # type: ignore[arg-type]
    except DAMAGE:
        return None
    return Entry(run.path, summary, SAVED if summary.file_bytes == run.rank_bytes else OUTDATED)


def _loaded(run: FoundRun, now_unix_ns: int) -> Entry | None:
    """The summary made of the run's steps; None where it cannot be loaded."""
    try:
        data = load_run(run.path)
        attempts = analyse(data)
        summary = summarise_run(data, attempts, build_report(data, attempts, now_unix_ns))
    except (DdlprofError, *DAMAGE):
        return None
    return Entry(run.path, summary, LOADED)


def _once(entries: list[Entry]) -> list[Entry]:
    """Keeps, of directories with the same job id, the one that tells most: hours must not count twice."""
    best: dict[str, Entry] = {}
    for entry in entries:
        key = entry.summary.job_id or f"\0{entry.path}"
        if key not in best or _tells(entry) > _tells(best[key]):
            best[key] = entry
    return [_named(entry) for entry in best.values()]


def _tells(entry: Entry) -> tuple[bool, int, float]:
    summary = entry.summary
    return summary.step_s is not None, summary.ranks, summary.wall_s or 0.0


def _named(entry: Entry) -> Entry:
    """The entry of a run without a manifest goes by the name of its directory, as in its report."""
    if entry.summary.job:
        return entry
    return replace(entry, summary=replace(entry.summary, job=entry.path.rstrip("/").rpartition("/")[2]))


@dataclass(frozen=True)
class FactChange:
    """A fact that changed since the last run of the same job."""

    what: str
    was: Any
    now: Any
    words: str


@dataclass(frozen=True)
class FleetRow:
    """One run with its costs. None: not known, or not measured."""

    entry: Entry
    price: Price | None
    usd: float | None
    hours: dict[str, float | None]
    """The hours of all ranks lost to each name of `LOST`."""
    lost_usd: dict[str, float | None]
    changes: tuple[FactChange, ...]

    @property
    def summary(self) -> RunSummary:
        return self.entry.summary

    @cached_property
    def goodput(self) -> Goodput | None:
        """The goodput of the run's attempts, and what failures among them cost."""
        return goodput(self.summary.trials)

    @property
    def failures_usd(self) -> float | None:
        """The dollars that these failures cost."""
        found = self.goodput
        return self.usd * found.lost_s / found.total_s if found and self.usd is not None and found.total_s else None

    @property
    def lost_hours(self) -> float | None:
        """The hours of all ranks lost in all, each counted once."""
        return known_sum(self.hours[name] for name in WHOLE)


def rows_of(entries: Sequence[Entry], catalog: Catalog, instance: str | None = None) -> list[FleetRow]:
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


def _row(entry: Entry, price: Price | None, changed: tuple[FactChange, ...]) -> FleetRow:
    summary = entry.summary
    hours: dict[str, float | None] = {name: summary.class_rank_hours.get(name) for name in STALLS}
    inside = known_sum(summary.class_rank_hours.get(name) for name in CLASSES)
    known = summary.rank_hours is not None and inside is not None
    hours[OUTSIDE] = max((summary.rank_hours or 0.0) - (inside or 0.0), 0.0) if known else None
    usd = price.usd_per_hour * summary.machine_hours if price and summary.machine_hours is not None else None
    per_hour = usd / summary.rank_hours if usd is not None and summary.rank_hours else None
    lost = {
        name: value * per_hour if value is not None and per_hour is not None else None for name, value in hours.items()
    }
    return FleetRow(entry, price, usd, hours, lost, changed)


def known_sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def changes(was: RunSummary | None, now: RunSummary) -> tuple[FactChange, ...]:
    """The facts that differ between two runs; a fact that one of them does not tell is left out."""
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
            found.append(FactChange(what, before, after, f"{what} {after}, was {before}"))
    for package in sorted(was.versions.keys() & now.versions.keys()):
        before, after = was.versions[package], now.versions[package]
        if before != after:
            found.append(FactChange(package, before, after, f"{package} {after}, was {before}"))
    if was.arguments and now.arguments and was.arguments != now.arguments:
        found.append(FactChange("arguments", was.arguments, now.arguments, "other arguments"))
    return tuple(found)


def _step(was: RunSummary, now: RunSummary) -> Iterable[FactChange]:
    """The change of the mean step, if it is more than noise by the test of `ddlprof compare`."""
    found = shift(_estimates(was), _estimates(now), ERROR)
    if found is None or not was.step_s or found.word not in (FASTER, SLOWER):
        return
    scale = scale_for(was.step_s)
    words = f"step {100 * found.ns / 1e9 / was.step_s:+.0f} %, was {scale.time(was.step_s)}"
    yield FactChange("step", was.step_s, now.step_s, words)


def _estimates(run: RunSummary) -> Side | None:
    """The mean step in nanoseconds with its error, and the noise between runs; None where the error is not known."""
    if run.step_s is None or run.step_error_s is None or run.step_noise is None or (run.step_error_freedom or 0) < 1:
        return None
    step_ns = run.step_s * 1e9
    own = MeanEstimate(step_ns, (run.step_error_s * 1e9) ** 2, run.step_error_freedom or 1.0)
    return Side(own, run.step_noise, step_ns)
