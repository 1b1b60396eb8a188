"""The machines of a fleet: in which of its runs each was the one that the others waited for, and how likely by chance.

A rank that is late in one run may have had uneven work. A machine that is late again and again is sick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.base.units import moment, percent
from ddlprof.model.health import COUNTERS
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.fleet.data import FleetRow
from ddlprof.report.fleet.formats import FleetLines, minute
from ddlprof.report.table import Column, Table, fields

LEAST_LATE_RUNS = 2
BY_CHANCE = 0.01
"""A machine is suspect if it is late in several runs, and this often at most by chance, for as many machines."""
_WORDS_IN_TABLE = 3


@dataclass(frozen=True)
class FleetNode:
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


def nodes_of(rows: Sequence[FleetRow]) -> list[FleetNode]:
    """The machines of these runs, the most suspect first. Runs whose summary has no names of machines are left out."""
    by_node: dict[str, list[RunSummary]] = {}
    for row in rows:
        for name in row.summary.host_names:
            by_node.setdefault(name, []).append(row.summary)
    found = [_node(name, runs, len(by_node)) for name, runs in by_node.items()]
    return sorted(found, key=lambda node: (not node.is_suspect, -node.late_runs, node.by_chance or 0.0, node.node))


def _node(name: str, runs: Sequence[RunSummary], nodes: int) -> FleetNode:
    compared = [run for run in runs if len(run.host_names) > 1 and run.step_s is not None]
    late = sorted((run for run in compared if run.late_host == name), key=lambda run: -run.created_unix_ns)
    chances = [1 / len(run.host_names) for run in compared if run.late_host is not None]
    moved = Counter(counter for run in late for counter in dict.fromkeys(run.moved))
    return FleetNode(
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


def _by_chance(node: FleetNode) -> str:
    chance = node.by_chance
    return "" if chance is None else "<0.01 %" if chance < 1e-4 else percent(chance)


def _moved(node: FleetNode) -> str:
    return ", ".join(COUNTERS[name].words for name in node.moved[:_WORDS_IN_TABLE] if name in COUNTERS)


def _below(nodes: Sequence[FleetNode]) -> list[str]:
    none = "none: no machine is late more often than chance would have it"
    if not any(node.compared_runs for node in nodes):
        none = "not known: no run compares machines"
    return [f"Suspect   {', '.join(node.node for node in nodes if node.is_suspect) or none}"]


NODES = FleetLines(
    noun="machine",
    key="nodes",
    lines_of=nodes_of,
    table=Table[FleetNode](
        *fields("node", "runs", "compared_runs", "late_runs", "by_chance", "is_suspect", "last_late"),
        Column("moved", lambda node: ";".join(node.moved)),
        Column("late_jobs", lambda node: ";".join(node.late_jobs)),
    ),
    shown=Table[FleetNode](
        Column("NODE", "node", words=True),
        Column("RUNS", "runs"),
        Column("LATE IN", lambda node: f"{node.late_runs} of {node.compared_runs}" if node.compared_runs else None),
        Column("BY CHANCE", _by_chance),
        Column("LAST", lambda node: minute(node.last_late or ""), words=True),
        Column("COUNTERS THAT MOVED MEANWHILE", _moved, words=True),
        Column("JOBS", lambda node: ", ".join(node.late_jobs), words=True),
    ),
    lists={"moved": lambda node: node.moved, "late_jobs": lambda node: node.late_jobs},
    below=_below,
    notes=lambda listing: listing.notes("names of machines", lambda row: row.summary.host_names),
)
