"""The tables of a run as columns: one source for the CSV and Parquet files and the data frames of `ddlprof.load`.

Integer columns hold MISSING and float columns NaN where nothing was measured. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.collectives import bus_factor, can_split
from ddlprof.analysis.job_time import JOB_PARTS, job_time
from ddlprof.analysis.run import Attempt, RankAnalysis, headline_attempt
from ddlprof.analysis.summary import Summary
from ddlprof.model.classes import TIMES
from ddlprof.model.dimensions import dimension_of
from ddlprof.model.records import MISSING, NEVER, Flag
from ddlprof.report.run.columns import OF_STEP, RUN_COLUMNS
from ddlprof.report.run.energy import ENERGY_FIGURES, EnergyLine, energy_line
from ddlprof.report.run.rates import Rates, rates_of
from ddlprof.store import IntArray, RunData

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, NDArray[Any]]
Types = dict[str, type]
"""The columns of a table with their types: those of Parquet's."""

COUNTS = tuple(name for name, column in OF_STEP.items() if name == column and name not in ("step", "flags"))
"""The columns of a step that are the numbers of its record."""
Progress = Callable[[int, int], None]
"""`progress(ranks written, ranks in all)`."""


def step_columns(rank: RankAnalysis, origin_unix_ns: int) -> Columns:
    """`steps.csv` for one rank."""
    steps = rank.data.steps
    since_origin = rank.shown_origin_unix_ns - origin_unix_ns
    columns: Columns = {
        column: steps[name] if name == column else _seconds(steps[name], 1e9) for name, column in OF_STEP.items()
    }
    columns |= {f"{name}_s": _seconds(rank.times.times[name], 1e9) for name in TIMES}
    columns["start_s"] = (steps["start_ns"] + since_origin) / 1e9
    columns["flags"] = _flag_texts(rank.flags)
    columns |= _of_rank(rank, len(steps))
    return {name: columns[name] for name in RUN_COLUMNS["steps"]}


def collective_columns(rank: RankAnalysis, origin_unix_ns: int) -> Columns:
    """`collectives.csv` for one rank."""
    matched, steps = rank.collectives, rank.data.steps
    table = matched.table
    step_start_ns = (steps["start_ns"] + rank.shown_origin_unix_ns - origin_unix_ns)[table.row]
    transfer = np.where(matched.in_doubt, MISSING, matched.transfer_us)
    wait = np.where(transfer == MISSING, MISSING, matched.duration_us - transfer)
    # A root may return before its data are sent, so operations whose ranks have different roles get no bandwidth.
    moved = _of_shape([s.bytes * bus_factor(s.op, s.ranks) * can_split(s.op) for s in table.shapes], table.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = np.where((transfer > 0) & (moved > 0), moved / (transfer * 1e3), np.nan)
    columns: Columns = {
        "step": steps["step"][table.row],
        "group": _of_shape([s.group for s in table.shapes], table.shape),
        "seq": table.seq,
        "op": _of_shape([s.op for s in table.shapes], table.shape),
        "bytes": _of_shape([s.bytes for s in table.shapes], table.shape),
        "ranks": _of_shape([s.ranks for s in table.shapes], table.shape),
        "scope": _of_shape(matched.scopes, table.shape),
        "start_s": (step_start_ns + 1000 * matched.start_us) / 1e9,
        "ready_s": (step_start_ns + 1000 * table.ready_us) / 1e9,
        "duration_s": _seconds(matched.duration_us, 1e6),
        "transfer_s": _seconds(transfer, 1e6),
        "wait_s": _seconds(wait, 1e6),
        "exposed_s": np.where(table.exposed_us == NEVER, 0, table.exposed_us) / 1e6,
        "busbw_gb_s": bandwidth,
        "dimension": _of_shape([dimension_of(s, rank.data.groups) for s in table.shapes], table.shape),
    }
    columns |= _of_rank(rank, len(table))
    return {name: columns[name] for name in RUN_COLUMNS["collectives"]}


def rank_columns(attempts: Sequence[Attempt]) -> Columns:
    """`ranks.csv`: every rank of every attempt."""
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    columns: Columns = {
        "attempt": np.array([r.data.attempt for r in ranks], dtype=np.int64),
        "rank": np.array([r.data.rank for r in ranks], dtype=np.int64),
        "host": _texts([r.data.header.host for r in ranks]),
        "node": np.array([r.data.node for r in ranks], dtype=np.int64),
        "device": _texts([r.data.header.device for r in ranks]),
        "status": _texts([r.data.status for r in ranks]),
        "complete": np.array([r.data.complete for r in ranks], dtype=bool),
        "steps": np.array([r.data.step_count for r in ranks], dtype=np.int64),
        "steady_steps": np.array([r.summary.steady_steps for r in ranks], dtype=np.int64),
    }
    columns |= {f"{name}_s": _means([r.summary.mean_ns(name) for r in ranks]) for name in TIMES}
    return {name: columns[name] for name in RUN_COLUMNS["ranks"]}


def summary_columns(summary: Summary | None) -> Columns:
    """`summary.csv`: the step, its classes and their parts, then communication by dimension of the layout."""
    named = {**{name: summary.spreads[name] for name in TIMES}, **summary.dimensions} if summary else {}
    spreads, step_ns = list(named.values()), summary.mean_ns("step") if summary else None
    columns: Columns = {
        "class": _texts(list(named)),
        "mean_s": _means([s.mean_ns for s in spreads]),
        "share": _floats([s.mean_ns / step_ns if s.mean_ns is not None and step_ns else None for s in spreads]),
        "median_s": _means([s.median_ns for s in spreads]),
        "p95_s": _means([s.p95_ns for s in spreads]),
    }
    return {name: columns[name] for name in RUN_COLUMNS["summary"]}


def job_columns(attempts: Sequence[Attempt]) -> Columns:
    """`job.csv`: the parts of the wall time of every attempt that trained."""
    jobs = [job for attempt in attempts if (job := job_time(attempt)) is not None]
    rows = [(job, part) for job in jobs for part in JOB_PARTS]
    columns: Columns = {
        "attempt": np.array([job.attempt for job, _ in rows], dtype=np.int64),
        "part": _texts([part for _, part in rows]),
        "seconds": _floats([job.parts_s[part] for job, part in rows]),
        "share": _floats([job.share(part) for job, part in rows]),
    }
    return {name: columns[name] for name in RUN_COLUMNS["job"]}


def rate_columns(rates: Rates, energy: EnergyLine | None) -> Columns:
    """`rates.csv`: how fast the job trains, and the energy that it takes."""
    values = {**asdict(rates), **{name: getattr(energy, name, None) for name in ENERGY_FIGURES}}
    columns: Columns = {"rate": _texts(list(values)), "value": _floats(list(values.values()))}
    return {name: columns[name] for name in RUN_COLUMNS["rates"]}


def phase_columns(attempts: Sequence[Attempt]) -> Columns:
    """`phases.csv`: the phases of every attempt that train the same, with the first step of the first of them."""
    lines = [(each, of, line) for each in attempts if (of := each.phases) is not None for line in of.lines]
    columns: Columns = {
        "attempt": np.array([each.attempt for each, _, _ in lines], dtype=np.int64),
        "phase": np.array([line.number for _, _, line in lines], dtype=np.int64),
        "first_step": np.array([line.first_steps[0] for _, _, line in lines], dtype=np.int64),
        "model": _texts([line.model or "" for _, _, line in lines]),
        "optimizer": _texts([line.optimizer for _, _, line in lines]),
        "steps": np.array([line.steps for _, _, line in lines], dtype=np.int64),
        "mean_s": _floats([line.mean_s for _, _, line in lines]),
        "share": _floats([line.share for _, _, line in lines]),
        "shown": np.array([line is of.shown for _, of, line in lines], dtype=bool),
    }
    return {name: columns[name] for name in RUN_COLUMNS["phases"]}


def _of_rank(rank: RankAnalysis, length: int) -> Columns:
    data = rank.data
    values = {"attempt": data.attempt, "rank": data.rank, "node": data.node}
    return {name: np.full(length, value, dtype=np.int64) for name, value in values.items()}


def _of_shape(values: Sequence[Any], shape: IntArray) -> NDArray[Any]:
    if values and isinstance(values[0], str):
        return _texts(values)[shape]
    return np.array(values, dtype=None if values else np.int64)[shape]


def _texts(values: Sequence[str]) -> NDArray[Any]:
    return np.array(values, dtype=object)


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _means(nanoseconds: Sequence[float | None]) -> NDArray[np.float64]:
    return _floats(nanoseconds) / 1e9


def _seconds(values: IntArray, per_second: float) -> NDArray[np.float64]:
    return np.where(values == MISSING, np.nan, values / per_second)


def _flag_texts(flags: IntArray) -> NDArray[Any]:
    kinds, index = np.unique(flags, return_inverse=True)
    return _texts([Flag(kind).text() for kind in kinds.tolist()])[index]


class RunTable(NamedTuple):
    """One table; its pieces are made one at a time, so that of many ranks only one is in memory."""

    name: str
    columns: Types
    pieces: Iterable[Columns]


def tables_of(run: RunData, attempts: Sequence[Attempt], progress: Progress | None = None) -> list[RunTable]:
    """All tables of a run; the steps, which `progress` counts, come last."""
    headline = headline_attempt(attempts)
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    origin = run.origin_unix_ns
    rates = rates_of(headline.manifest(run.manifest) if headline else run.manifest, headline)
    phased = any(attempt.phases is not None for attempt in attempts)

    def steps() -> Iterable[Columns]:
        for number, rank in enumerate(ranks, 1):
            yield step_columns(rank, origin)
            if progress:
                progress(number, len(ranks))

    pieces: dict[str, Iterable[Columns]] = {
        "summary": map(summary_columns, [headline.summary if headline else None]),
        "ranks": map(rank_columns, [attempts]),
        "job": map(job_columns, [attempts]),
        "rates": [rate_columns(rates, energy_line(attempts, headline, rates))],
        **({"phases": map(phase_columns, [attempts])} if phased else {}),
        "collectives": (collective_columns(rank, origin) for rank in ranks),
        "steps": steps(),
    }
    types = {name: {column: each.type for column, each in of.items()} for name, of in RUN_COLUMNS.items()}
    return [RunTable(name, types[name], pieces[name]) for name in RUN_COLUMNS if name in pieces]


def frame(run: RunData, attempts: Sequence[Attempt], name: str) -> pd.DataFrame:
    """The columns of `NAME.csv` as a data frame of pandas, which nothing else here imports."""
    import pandas as pd

    table = next(table for table in tables_of(run, attempts) if table.name == name)
    pieces = list(table.pieces)
    columns: dict[str, Any] = {}
    for column in table.columns:
        values = np.concatenate([piece[column] for piece in pieces]) if pieces else np.zeros(0)
        if values.dtype.kind == "i" and (values == MISSING).any():
            columns[column] = pd.Series(values).astype("Int64").mask(pd.Series(values == MISSING))
        else:
            columns[column] = values
    found: pd.DataFrame = pd.DataFrame(columns)
    return found
