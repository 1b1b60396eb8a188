"""The list of runs as a table for people, as JSON and as CSV, and its total."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddlprof.analysis.goodput import goodput
from ddlprof.base.text import text_of, without_credentials
from ddlprof.base.units import NOT_KNOWN, count, figure, moment, percent, scale_for
from ddlprof.model.classes import TIMES
from ddlprof.report.fleet.data import GLANCE, LOST, OUTDATED, OUTSIDE, WHOLE, Row, known_sum
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.text import aligned

FLEET_SCHEMA = 1
LOST_SHARE = 0.01
"""The least share of a run's hours that is worth a place in the table."""
_WORDS = {"h2d": "copies", OUTSIDE: "outside steps"}
_FACTS = ("model", "job_id", "status", "world_size", "ranks", "hosts", "device", "instance_type", "attempts", "steps",
          "steady_steps", "wall_s", "gpu_hours", "rank_hours", "machine_hours")  # fmt: skip
_LAST = ("verdict", "verdict_severity", "step_s", "step_error_s")
COLUMNS = (
    "job", "path", "created", "ended", "source", *_FACTS, *_LAST, *(f"{name}_s" for name in TIMES[1:]), "findings",
    "usd", "usd_per_hour", "price_region", "price_as_of", "price_basis",
    *(f"{name}_rank_hours" for name in LOST), *(f"{name}_usd" for name in LOST), "changes",
    "goodput", "failures", "failures_rank_hours", "failures_usd",
)  # fmt: skip
"""The columns of the CSV file and keys of the JSON objects."""

SORTS: dict[str, Callable[[Row], Any]] = {
    "when": lambda row: -row.summary.created_unix_ns,
    "job": lambda row: (row.summary.job, -row.summary.created_unix_ns),
    "hours": lambda row: -(row.summary.rank_hours or 0.0),
    "usd": lambda row: -(row.usd or 0.0),
    "lost": lambda row: -(row.lost_hours or 0.0),
    "step": lambda row: -(row.summary.step_s or 0.0),
}
"""The orders of the list; all but `job` with the newest or the most first."""


@dataclass(frozen=True)
class Listing:
    """The rows to show, and a line for each thing that was left out or is not known."""

    rows: Sequence[Row]
    left_out: Sequence[str] = field(default=())
    top: int = 100
    """The most lines of the table."""


def as_json(listing: Listing) -> str:
    """One object with a list of runs, the total and what was left out."""
    runs = [{**record(row), "changes": [vars(change) for change in row.changes]} for row in listing.rows]
    return json_text({"schema": FLEET_SCHEMA, "runs": runs, "total": total(listing.rows), "notes": _notes(listing)})


def as_csv(listing: Listing) -> str:
    """A row for each run."""
    return csv_text(COLUMNS, (record(row) for row in listing.rows))


def as_table(listing: Listing) -> str:
    """A line for each run, the total, and where prices are from."""
    heads = ["JOB", "BEGAN (UTC)", "MACHINES", "ENDED BY", "VERDICT", "STEP", "HOURS", "USD", "LOST", "SINCE LAST RUN"]
    cells = [heads, *(_cells(row) for row in listing.rows[: listing.top])]
    lines = [*aligned(cells, range(5, 8)), "", *_total_lines(total(listing.rows)), *_prices(listing.rows)]
    if (more := len(listing.rows) - listing.top) > 0:
        lines.append(f"Note   not shown: {count(more, 'more run')} (--top N, --format csv)")
    return text_of([*lines, *(f"Note   {note}" for note in _notes(listing))])


def record(row: Row) -> dict[str, Any]:
    """The row by the names of `COLUMNS`; None for what is not known."""
    summary, price = row.summary, row.price
    values: dict[str, Any] = {
        "job": summary.job,
        "path": without_credentials(row.entry.path),
        "created": moment(summary.created_unix_ns),
        "ended": moment(summary.ended_unix_ns),
        "source": row.entry.source,
        **{name: getattr(summary, name) for name in (*_FACTS, *_LAST)},
        **{f"{name}_s": summary.classes_s.get(name) for name in TIMES[1:]},
        "findings": ";".join(summary.findings),
        "usd": row.usd,
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_region": price.region if price else None,
        "price_as_of": price.as_of or None if price else None,
        "price_basis": price.basis or None if price else None,
        **{f"{name}_rank_hours": row.hours[name] for name in LOST},
        **{f"{name}_usd": row.lost_usd[name] for name in LOST},
        "changes": "; ".join(change.words for change in row.changes),
        **_failures(row),
    }
    return {name: values[name] for name in COLUMNS}


def _failures(row: Row) -> dict[str, Any]:
    """The goodput of the run's attempts, and what failures among them cost; None where it is not known."""
    found = goodput(row.summary.trials)
    if found is None:
        return dict.fromkeys(("goodput", "failures", "failures_rank_hours", "failures_usd"))
    lost_s = sum(failure.lost_s for failure in found.failures)
    return {
        "goodput": found.share,
        "failures": len(found.failures),
        "failures_rank_hours": lost_s / 3600,
        "failures_usd": row.usd * lost_s / found.total_s if row.usd is not None and found.total_s else None,
    }


def total(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over the runs; `priced_runs` and `timed_runs` count the runs in them. None where no run has the value."""
    return {
        "runs": len(rows),
        "gpu_hours": known_sum(row.summary.gpu_hours for row in rows),
        "cpu_rank_hours": known_sum(row.summary.rank_hours for row in rows if row.summary.device == "cpu"),
        "usd": known_sum(row.usd for row in rows),
        "timed_runs": sum(row.summary.step_s is not None for row in rows),
        "priced_runs": sum(row.usd is not None for row in rows),
        "lost_gpu_hours": {
            name: known_sum(row.hours[name] for row in rows if row.summary.gpu_hours is not None) for name in LOST
        },
        "lost_usd": {name: known_sum(row.lost_usd[name] for row in rows) for name in LOST},
    }


def _cells(row: Row) -> list[str]:
    summary = row.summary
    name = summary.job + (f" ({summary.model})" if summary.model else "")
    began = (moment(summary.created_unix_ns) or NOT_KNOWN)[:16].replace("T", " ")
    step = NOT_KNOWN if summary.step_s is None else scale_for(summary.step_s).time(summary.step_s)
    verdict = summary.verdict or ("not summarised" if row.entry.source == GLANCE else NOT_KNOWN)
    ended = {"torn": "no word"}.get(summary.status, summary.status)
    changed = ", ".join(change.words for change in row.changes)
    hours, usd = figure(summary.rank_hours), figure(row.usd)
    return [name, began, _machines(row), ended, verdict, step, hours, usd, _lost(row), changed]


def _lost(row: Row) -> str:
    """`comm 21 %, data 4 %`: shares of the run's hours, and so of its dollars, the largest first."""
    hours = row.summary.rank_hours
    if not hours:
        return NOT_KNOWN
    shares = {name: lost / hours for name in WHOLE if (lost := row.hours[name]) is not None}
    large = sorted((name for name in shares if shares[name] >= LOST_SHARE), key=lambda name: -shares[name])
    if not large:
        return "nothing" if shares else NOT_KNOWN
    return ", ".join(f"{_WORDS.get(name, name)} {percent(shares[name])}" for name in large)


def _machines(row: Row) -> str:
    """`2 x p4d.24xlarge (16 ranks on A100)`."""
    summary = row.summary
    hosts = "?" if summary.hosts is None else str(summary.hosts)
    machine = summary.instance_type or (f"{row.price.instance_type}?" if row.price else "machine")
    on = f" on {summary.device}" if summary.device not in ("", "cpu") else ""
    return f"{hosts} x {machine} ({count(summary.world_size, 'rank')}{on})"


def _amount(hours: float | None, usd: float | None) -> str:
    known = [f"{figure(value)} {unit}" for value, unit in ((hours, "h"), (usd, "USD")) if value is not None]
    return " ".join(known) or NOT_KNOWN


def _total_lines(sums: dict[str, Any]) -> Iterator[str]:
    text = f"Total  {count(sums['runs'], 'run')}"
    if sums["gpu_hours"] is not None or not sums["cpu_rank_hours"]:
        text += f", {figure(sums['gpu_hours'])} GPU-hours"
    if sums["cpu_rank_hours"]:
        text += f", {figure(sums['cpu_rank_hours'])} hours of ranks on CPUs"
    yield text + f", {figure(sums['usd'])} USD ({sums['priced_runs']:,} of them with a price)"
    words = [
        f"{_WORDS.get(name, name)} {_amount(sums['lost_gpu_hours'][name], sums['lost_usd'][name])}"
        for name in WHOLE
        if sums["lost_gpu_hours"][name] is not None or sums["lost_usd"][name] is not None
    ]
    if words:
        yield f"Lost   GPU-hours and dollars of {count(sums['timed_runs'], 'run')}: " + ", ".join(words)


def _prices(rows: Sequence[Row]) -> Iterator[str]:
    known = {(row.price.instance_type, row.price.region): row.price for row in rows if row.price}
    prices = [
        f"{p.instance_type} {p.usd_per_hour:g} USD/h in {p.region} ({p.basis}, as of {p.as_of or '?'})"
        for _, p in sorted(known.items())
    ]
    if prices:
        yield "Prices on demand: " + ", ".join(prices)


def _notes(listing: Listing) -> list[str]:
    notes = []
    sources = [row.entry.source for row in listing.rows]
    if glances := sources.count(GLANCE):
        notes.append(
            f"without summary.json, and not loaded, so that their steps are not known: {glances:,} (--analyse N)"
        )
    if outdated := sources.count(OUTDATED):
        notes.append(f"summary.json is older than the run: {outdated:,} (--analyse N)")
    return [*notes, *listing.left_out]


FORMATS: dict[str, Callable[[Listing], str]] = {"table": as_table, "json": as_json, "csv": as_csv}
