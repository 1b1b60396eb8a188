"""The list of runs as a table for people, as JSON and as CSV, and its total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ddlprof.base.text import text_of, without_credentials
from ddlprof.base.units import NOT_KNOWN, count, figure, moment, percent, scale_for
from ddlprof.model.classes import TIMES
from ddlprof.report.fleet.data import GLANCE, LOST, OUTDATED, OUTSIDE, WHOLE, FleetRow, known_sum
from ddlprof.report.json_csv import json_text
from ddlprof.report.table import Column, Table, fields

FLEET_SCHEMA = 1
LOST_SHARE = 0.01
"""The least share of a run's hours that is worth a place in the table."""
_WORDS = {"h2d": "copies", OUTSIDE: "outside steps"}
_FACTS = ("model", "job_id", "status", "world_size", "ranks", "hosts", "device", "instance_type", "attempts", "steps",
          "steady_steps", "wall_s", "gpu_hours", "rank_hours", "machine_hours")  # fmt: skip
_LAST = ("verdict", "verdict_severity", "step_s", "step_error_s")


SORTS: dict[str, Callable[[FleetRow], Any]] = {
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

    rows: Sequence[FleetRow]
    left_out: Sequence[str] = field(default=())
    top: int = 100
    """The most lines of the table."""

    def notes(self, what: str, of: Callable[[FleetRow], Any]) -> list[str]:
        """What was left out, runs whose summary does not tell so among it."""
        silent = sum(not of(row) for row in self.rows)
        words = f"{count(silent, 'run')} without {what}, left out: ddlprof report --save-summary RUN adds them"
        return [*self.left_out, *([words] if silent else [])]


_Line = TypeVar("_Line")


@dataclass(frozen=True)
class FleetLines(Generic[_Line]):
    """What has a line each in the list: runs, machines or jobs."""

    noun: str
    key: str
    """The name of the list in JSON."""
    lines_of: Callable[[Sequence[FleetRow]], Sequence[_Line]]
    table: Table[_Line]
    """The columns of the CSV file and keys of the JSON objects."""
    shown: Table[_Line]
    lists: Mapping[str, Callable[[_Line], Any]]
    """What is a list in JSON, and one text in CSV."""
    below: Callable[[Sequence[_Line]], Iterable[str]]
    """The lines below the table: the total and the like."""
    notes: Callable[[Listing], list[str]]
    total: Callable[[Sequence[_Line]], dict[str, Any]] | None = None

    def as_json(self, listing: Listing) -> str:
        """One object with the list, its total and what was left out."""
        lines = self.lines_of(listing.rows)
        found = [self.table.record(line) | {name: of(line) for name, of in self.lists.items()} for line in lines]
        total = {"total": self.total(lines)} if self.total else {}
        return json_text({"schema": FLEET_SCHEMA, self.key: found, **total, "notes": self.notes(listing)})

    def as_csv(self, listing: Listing) -> str:
        """One row each."""
        return self.table.csv(self.lines_of(listing.rows))

    def as_table(self, listing: Listing) -> str:
        """One line each, what is below them, and notes."""
        lines = self.lines_of(listing.rows)
        text = [*self.shown.lines(lines[: listing.top]), "", *self.below(lines)]
        if (more := len(lines) - listing.top) > 0:
            text.append(f"Note   not shown: {count(more, f'more {self.noun}')} (--top N, --format csv)")
        return text_of([*text, *(f"Note   {note}" for note in self.notes(listing))])

    @property
    def formats(self) -> dict[str, Callable[[Listing], str]]:
        """The functions by format."""
        return {"table": self.as_table, "json": self.as_json, "csv": self.as_csv}


def total(rows: Sequence[FleetRow]) -> dict[str, Any]:
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


def _job(row: FleetRow) -> str:
    return row.summary.job + (f" ({row.summary.model})" if row.summary.model else "")


def _step(row: FleetRow) -> str | None:
    step_s = row.summary.step_s
    return None if step_s is None else scale_for(step_s).time(step_s)


def _verdict(row: FleetRow) -> str | None:
    return row.summary.verdict or ("not summarised" if row.entry.source == GLANCE else None)


def minute(moment: str) -> str:
    """The moment without seconds."""
    return moment[:16].replace("T", " ")


def _lost(row: FleetRow) -> str:
    """`comm 21 %, data 4 %`: shares of the run's hours, and so of its dollars, the largest first."""
    hours = row.summary.rank_hours
    if not hours:
        return NOT_KNOWN
    shares = {name: lost / hours for name in WHOLE if (lost := row.hours[name]) is not None}
    large = sorted((name for name in shares if shares[name] >= LOST_SHARE), key=lambda name: -shares[name])
    if not large:
        return "nothing" if shares else NOT_KNOWN
    return ", ".join(f"{_WORDS.get(name, name)} {percent(shares[name])}" for name in large)


def _machines(row: FleetRow) -> str:
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


def _below(rows: Sequence[FleetRow]) -> Iterator[str]:
    """The total, and where prices are from."""
    yield from _total_lines(total(rows))
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


RUNS = FleetLines(
    noun="run",
    key="runs",
    lines_of=lambda rows: rows,
    table=Table[FleetRow](
        *fields("job=summary.job"),
        Column("path", lambda row: without_credentials(row.entry.path)),
        Column("created", lambda row: moment(row.summary.created_unix_ns)),
        Column("ended", lambda row: moment(row.summary.ended_unix_ns)),
        *fields("source=entry.source", *(f"{name}=summary.{name}" for name in (*_FACTS, *_LAST))),
        *fields(*(f"{name}_s=summary.classes_s.{name}" for name in TIMES[1:])),
        Column("findings", lambda row: ";".join(row.summary.findings)),
        *fields("usd", "usd_per_hour=price.usd_per_hour", "price_region=price.region"),
        Column("price_as_of", lambda row: (row.price.as_of or None) if row.price else None),
        Column("price_basis", lambda row: (row.price.basis or None) if row.price else None),
        *fields(*(f"{name}_rank_hours=hours.{name}" for name in LOST)),
        *fields(*(f"{name}_usd=lost_usd.{name}" for name in LOST)),
        Column("changes", lambda row: "; ".join(change.words for change in row.changes)),
        *fields("goodput=goodput.share"),
        Column("failures", lambda row: len(row.goodput.failures) if row.goodput else None),
        Column("failures_rank_hours", lambda row: row.goodput.lost_s / 3600 if row.goodput else None),
        *fields("failures_usd"),
    ),
    shown=Table[FleetRow](
        Column("JOB", _job, words=True),
        Column("BEGAN (UTC)", lambda row: minute(moment(row.summary.created_unix_ns) or NOT_KNOWN), words=True),
        Column("MACHINES", _machines, words=True),
        Column("ENDED BY", lambda row: {"torn": "no word"}.get(row.summary.status, row.summary.status), words=True),
        Column("VERDICT", _verdict, words=True),
        Column("STEP", _step),
        Column("HOURS", "summary.rank_hours"),
        Column("USD", "usd"),
        Column("LOST", _lost, words=True),
        Column("SINCE LAST RUN", lambda row: ", ".join(change.words for change in row.changes), words=True),
    ),
    lists={"changes": lambda row: [vars(change) for change in row.changes]},
    below=_below,
    notes=_notes,
    total=total,
)
