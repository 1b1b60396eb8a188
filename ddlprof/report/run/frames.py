"""The tables of a run as pandas data frames, for `ddlprof.load`. The only module here that imports pandas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddlprof.analysis.run import Attempt, headline_attempt
from ddlprof.model.records import COLLECTIVE_COLUMNS, MISSING, STEP_COLUMNS, SUMMARY_COLUMNS
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


def steps(run: RunData, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """`steps.csv`."""
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    return _frame(STEP_COLUMNS, [step_columns(rank, run.origin_unix_ns) for rank in ranks])


def collectives(run: RunData, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """`collectives.csv`."""
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    return _frame(COLLECTIVE_COLUMNS, [collective_columns(rank, run.origin_unix_ns) for rank in ranks])


def ranks(attempts: Sequence[Attempt]) -> pd.DataFrame:
    """`ranks.csv`."""
    return _frame(RANK_COLUMNS, [rank_columns(attempts)])


def job(attempts: Sequence[Attempt]) -> pd.DataFrame:
    """`job.csv`."""
    return _frame(JOB_COLUMNS, [job_columns(attempts)])


def summary(attempts: Sequence[Attempt]) -> pd.DataFrame:
    """`summary.csv`, with the class as index."""
    headline = headline_attempt(attempts)
    frame = _frame(SUMMARY_COLUMNS, [summary_columns(headline.summary if headline else None)])
    frame.index = pd.Index(frame.pop("class"))
    return frame


def _frame(names: Iterable[str], tables: Sequence[Columns]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in names:
        values = np.concatenate([table[name] for table in tables]) if tables else np.zeros(0)
        if values.dtype.kind == "i" and (values == MISSING).any():
            columns[name] = pd.Series(values).astype("Int64").mask(pd.Series(values == MISSING))
        else:
            columns[name] = values
    frame: pd.DataFrame = pd.DataFrame(columns)
    return frame
