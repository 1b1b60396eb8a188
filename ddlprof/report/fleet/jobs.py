"""Runs as attempts of jobs: which of them continue others, and the goodput of each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.base.text import without_credentials
from ddlprof.model.records import GOOD_ENDS
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.fleet.data import FleetRow
from ddlprof.report.goodput.data import GoodputReport, goodput_report

_LONGEST_WAIT_S = 7 * 86400.0
"""A run that begins later than this after another is not taken for its continuation, unless it read its checkpoint."""


@dataclass(frozen=True)
class JobRow:
    """One job with all its runs, by the time they began."""

    rows: Sequence[FleetRow]
    report: GoodputReport

    @property
    def paths(self) -> list[str]:
        """The directories of its runs."""
        return [without_credentials(row.entry.path) for row in self.rows]


def jobs_of(rows: Sequence[FleetRow]) -> list[JobRow]:
    """The jobs of all runs whose attempts are known; the longest job first.

    A run continues another if it read a checkpoint that the other had written, or if both have the same job name and
    arguments, and the other had ended badly before it began.
    """
    chains = _Chains()
    for row in sorted((row for row in rows if row.summary.trials), key=lambda row: row.summary.created_unix_ns):
        chains.add(row)
    jobs = [JobRow(chain, report) for chain in chains.all if (report := _report(chain)) is not None]
    return sorted(jobs, key=lambda job: -job.report.rank_hours)


class _Chains:
    """Runs that continue each other, in the order in which the first of each began.

    A run goes to the latest chain that it may continue. Chains are found by what they have, as there may be thousands.
    """

    def __init__(self) -> None:
        self.all: list[list[FleetRow]] = []
        self._writer: dict[str, int] = {}
        """The latest chain with a run that wrote a file, by the hash of the file."""
        self._broken: dict[tuple[str, str, str | None], list[int]] = {}
        """Chains whose last run ended badly, by job, arguments and model of that run."""

    def add(self, row: FleetRow) -> None:
        """Adds the run, which begins after all others here, to the chain that it continues, or as a new one."""
        summary = row.summary
        before = [self._writer[each.file] for t in summary.trials for each in t.reads if each.file in self._writer]
        before += self._waiting(summary)
        number = max(before, default=len(self.all))
        if not before:
            self.all.append([])
        elif (last := _job(self.all[number][-1].summary)) in self._broken:
            self._broken[last] = [each for each in self._broken[last] if each != number]
        self.all[number].append(row)
        for saved in (each.file for trial in summary.trials for each in trial.saves if each.file):
            self._writer[saved] = max(number, self._writer.get(saved, 0))
        if summary.job and summary.status not in GOOD_ENDS:
            self._broken.setdefault(_job(summary), []).append(number)

    def _waiting(self, summary: RunSummary) -> list[int]:
        """The chains that this run may continue as its job ended badly not long ago."""
        waited_s = {
            number: (summary.created_unix_ns - self.all[number][-1].summary.ended_unix_ns) / 1e9
            for number in self._broken.get(_job(summary), ())
        }
        if waited_s:  # later runs come later still
            self._broken[_job(summary)] = [number for number, s in waited_s.items() if s < _LONGEST_WAIT_S]
        return [number for number, s in waited_s.items() if 0 <= s < _LONGEST_WAIT_S]


def _job(summary: RunSummary) -> tuple[str, str, str | None]:
    return summary.job, summary.arguments, summary.model


def _report(chain: Sequence[FleetRow]) -> GoodputReport | None:
    price = next((row.price for row in chain if row.price), None)
    return goodput_report(chain[0].summary.job, [trial for row in chain for trial in row.summary.trials], price)
