"""The machines of a fleet: in which of its runs each was the one that the others waited for, and how likely by chance.

A rank that is late in one run may have had uneven work. A machine that is late again and again is sick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ddlprof.base.text import text_of
from ddlprof.base.units import NOT_KNOWN, count, moment, percent
from ddlprof.model.health import COUNTERS
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.fleet.data import Row
from ddlprof.report.fleet.formats import FLEET_SCHEMA, Listing
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.text import aligned

COLUMNS = ("node", "runs", "compared_runs", "late_runs", "by_chance", "is_suspect", "last_late", "moved", "late_jobs")
"""The columns of the CSV file and keys of the JSON objects."""
LEAST_LATE_RUNS = 2
BY_CHANCE = 0.01
"""A machine is suspect if it is late in several runs, and this often at most by chance, for as many machines."""
_WORDS_IN_TABLE = 3


@dataclass(frozen=True)
class Node:
    """One machine."""

    node: str
    """Its host name."""
    runs: int
    compared_runs: int
    """The runs among these that had other machines and told whether a rank was late."""
    late_runs: int
    """Those in which it had the rank that the others waited for."""
    by_chance: float | None
    """The probability that it is late so often or more often, if in each run with a late rank any of its machines had
    it with the same probability; times the machines looked at. None: it is late in none."""
    last_late: str | None
    """When the last of these runs began."""
    moved: tuple[str, ...]
    """The counters that moved while it was late, the most frequent first."""
    late_jobs: tuple[str, ...]

    @property
    def is_suspect(self) -> bool:
        """Whether somebody should look at it."""
        return self.late_runs >= LEAST_LATE_RUNS and self.by_chance is not None and self.by_chance <= BY_CHANCE


def nodes_of(rows: Sequence[Row]) -> list[Node]:
    """The machines of these runs, the most suspect first. Runs whose summary has no names of machines are left out."""
    by_node: dict[str, list[RunSummary]] = {}
    for row in rows:
        for name in row.summary.host_names:
            by_node.setdefault(name, []).append(row.summary)
    found = [_node(name, runs, len(by_node)) for name, runs in by_node.items()]
    return sorted(found, key=lambda node: (not node.is_suspect, -node.late_runs, node.by_chance or 0.0, node.node))


def _node(name: str, runs: Sequence[RunSummary], nodes: int) -> Node:
    compared = [run for run in runs if len(run.host_names) > 1 and run.step_s is not None]
    late = sorted((run for run in compared if run.late_host == name), key=lambda run: -run.created_unix_ns)
    chances = [1 / len(run.host_names) for run in compared if run.late_host is not None]
    moved = Counter(counter for run in late for counter in dict.fromkeys(run.moved))
    return Node(
        node=name,
        runs=len(runs),
        compared_runs=len(compared),
        late_runs=len(late),
        by_chance=min(1.0, nodes * at_least(len(late), chances)) if late else None,
        last_late=moment(late[0].created_unix_ns) if late else None,
        moved=tuple(name for name, _ in moved.most_common()),
        late_jobs=tuple(dict.fromkeys(run.job for run in late)),
    )


def at_least(number: int, chances: Sequence[float]) -> float:
    """The probability that so many or more of independent events happen (the tail of a Poisson binomial)."""
    exactly = [1.0]
    for chance in chances:
        without, happened = [*exactly, 0.0], [0.0, *exactly]
        exactly = [(1 - chance) * a + chance * b for a, b in zip(without, happened, strict=True)]
    return sum(exactly[number:])


def record(node: Node) -> dict[str, Any]:
    """The machine by the names of `COLUMNS`."""
    return {name: getattr(node, name) for name in COLUMNS}


def as_json(listing: Listing) -> str:
    """One object with a list of machines."""
    nodes = nodes_of(listing.rows)
    return json_text({"schema": FLEET_SCHEMA, "nodes": [record(node) for node in nodes], "notes": _notes(listing)})


def as_csv(listing: Listing) -> str:
    """A row for each machine."""
    lists = ("moved", "late_jobs")
    rows = [record(node) for node in nodes_of(listing.rows)]
    return csv_text(COLUMNS, ({**row, **{name: ";".join(row[name]) for name in lists}} for row in rows))


def as_table(listing: Listing) -> str:
    """A line for each machine."""
    nodes = nodes_of(listing.rows)
    heads = ["NODE", "RUNS", "LATE IN", "BY CHANCE", "LAST", "COUNTERS THAT MOVED MEANWHILE", "JOBS"]
    lines = aligned([heads, *(_cells(node) for node in nodes[: listing.top])], range(1, 4))
    if (more := len(nodes) - listing.top) > 0:
        lines.append(f"Note   not shown: {count(more, 'more machine')} (--top N, --format csv)")
    suspect = [node.node for node in nodes if node.is_suspect]
    none = "none: no machine is late more often than chance would have it"
    if not any(node.compared_runs for node in nodes):
        none = "not known: no run compares machines"
    words = ", ".join(suspect) if suspect else none
    return text_of([*lines, "", f"Suspect   {words}", *(f"Note   {note}" for note in _notes(listing))])


def _cells(node: Node) -> list[str]:
    late = f"{node.late_runs} of {node.compared_runs}" if node.compared_runs else NOT_KNOWN
    chance = "" if node.by_chance is None else "<0.01 %" if node.by_chance < 1e-4 else percent(node.by_chance)
    moved = ", ".join(COUNTERS[name].words for name in node.moved[:_WORDS_IN_TABLE] if name in COUNTERS)
    last = (node.last_late or "")[:16].replace("T", " ")
    return [node.node, str(node.runs), late, chance, last, moved, ", ".join(node.late_jobs)]


def _notes(listing: Listing) -> list[str]:
    nameless = sum(not row.summary.host_names for row in listing.rows)
    words = f"{count(nameless, 'run')} without names of machines, left out: ddlprof report --save-summary RUN adds them"
    return [*listing.left_out, *([words] if nameless else [])]


FORMATS: dict[str, Callable[[Listing], str]] = {"table": as_table, "json": as_json, "csv": as_csv}
