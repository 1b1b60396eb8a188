"""The tables that `ddlprof export` writes, in whatever format: their names, their columns and their rows in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ddlprof.analysis.run import Attempt, headline_attempt
from ddlprof.model.records import COLLECTIVE_COLUMNS, STEP_COLUMNS, SUMMARY_COLUMNS
from ddlprof.report.run.tables import (
    JOB_COLUMNS,
    RANK_COLUMNS,
    Columns,
    collective_columns,
    job_columns,
    rank_columns,
    step_columns,
    summary_columns,
)
from ddlprof.store import RunData

Progress = Callable[[int, int], None]
"""`progress(ranks written, ranks in all)`."""


class Table(NamedTuple):
    """One table; its pieces are made one at a time, so that of many ranks only one is in memory."""

    name: str
    columns: tuple[str, ...]
    pieces: Iterable[Columns]


def tables_of(run: RunData, attempts: Sequence[Attempt], progress: Progress | None = None) -> list[Table]:
    """All tables of a run; the steps, which `progress` counts, come last."""
    headline = headline_attempt(attempts)
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    origin = run.origin_unix_ns

    def steps() -> Iterable[Columns]:
        for number, rank in enumerate(ranks, 1):
            yield step_columns(rank, origin)
            if progress:
                progress(number, len(ranks))

    return [
        Table("summary", SUMMARY_COLUMNS, [summary_columns(headline.summary if headline else None)]),
        Table("ranks", RANK_COLUMNS, [rank_columns(attempts)]),
        Table("job", JOB_COLUMNS, [job_columns(attempts)]),
        Table("collectives", COLLECTIVE_COLUMNS, (collective_columns(rank, origin) for rank in ranks)),
        Table("steps", STEP_COLUMNS, steps()),
    ]
