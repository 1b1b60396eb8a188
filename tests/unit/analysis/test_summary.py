"""Means over steady steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ddlprof.analysis.summary import RankTimes, summarise
from ddlprof.model.classes import CLASSES, COMM_PARTS, RECORDED, TIMES
from ddlprof.model.records import MISSING, Aggregate, StepRow
from ddlprof.store import StepTable
from tests.golden.runs import MS, step


def rank_times(
    rows: Sequence[StepRow],
    steady: Sequence[bool] | None = None,
    parts_ms: Mapping[str, Sequence[float]] | None = None,
    aggregates: Sequence[Aggregate] = (),
) -> RankTimes:
    table = StepTable.from_rows(rows)
    times = {name: table[f"{name}_ns"] for name in RECORDED}
    for name in COMM_PARTS:
        values = (parts_ms or {}).get(name, [MISSING] * len(rows))
        times[name] = np.array([v if v == MISSING else v * MS for v in values], dtype=np.int64)
    mask = np.array(steady if steady is not None else [True] * len(rows), dtype=bool)
    return RankTimes(table["step"], times, mask, aggregates)


def test_only_steady_steps_count() -> None:
    rows = [step(0, compute_ms=500), step(1, compute_ms=8), step(2, compute_ms=9)]
    summary = summarise([rank_times(rows, [False, True, True])])
    assert summary.mean_ns("compute") == 8.5 * MS
    assert summary.spreads["compute"].median_ns == 8.5 * MS
    assert summary.spreads["compute"].p95_ns == pytest.approx(8.95 * MS)


def test_sums_of_steps_that_were_not_kept_enter_the_means_exactly() -> None:
    aggregate = Aggregate(2, 8, 800 * MS, 700 * MS, 50 * MS, None, None, 0, 0, 50 * MS, 8, 256)
    summary = summarise([rank_times([step(0), step(1)], aggregates=[aggregate])])
    assert summary.steady_steps == 10
    assert summary.mean_ns("step") == (20 + 800) / 10 * MS
    assert summary.mean_ns("data") == (2 + 50) / 10 * MS
    assert summary.spreads["step"].median_ns == 10 * MS


def test_a_class_that_was_never_measured_is_none_and_one_that_cannot_occur_is_zero() -> None:
    summary = summarise([rank_times([step(n, data_ms=None) for n in range(5)])])
    assert summary.mean_ns("data") is None
    assert summary.share("data") is None
    assert summary.spreads["data"].median_ns is None
    assert summary.mean_ns("comm") == 0
    assert summary.mean_ns("data_fetch") is None


def test_steps_with_other_classes_measured_than_most_are_left_out() -> None:
    rows = [step(n) for n in range(8)] + [step(n, data_ms=None, other_ms=2) for n in (8, 9)]
    summary = summarise([rank_times(rows)])
    assert (summary.steady_steps, summary.left_out) == (8, 2)
    assert summary.mean_ns("data") == MS
    assert summary.mean_ns("other") == MS


def test_a_rank_without_a_loader_beside_one_that_has_it_waits_for_no_batch() -> None:
    loads = rank_times([step(n, data_ms=6, compute_ms=4) for n in range(5)])
    alone = Aggregate(5, 10, 50 * MS, 40 * MS, None, None, None, 0, 0, 10 * MS, 5, 0)
    sent = rank_times([step(n, data_ms=None, compute_ms=8) for n in range(5)], aggregates=[alone])
    summary = summarise([loads, sent])
    assert (summary.steady_steps, summary.left_out) == (20, 0)
    assert summary.mean_ns("data") == 1.5 * MS
    assert summary.mean_ns("step") == sum(summary.mean_ns(name) or 0 for name in CLASSES)
    assert summarise([sent]).mean_ns("data") is None
    looks = rank_times([step(n, data_ms=4 * (n == 3)) for n in range(5)])
    assert (loads.has_loader, sent.has_loader, looks.has_loader) == (True, False, False)


def test_the_split_is_weighted_by_time_not_by_steps() -> None:
    # A loader delivers in bursts; only the steps that wait can tell why.
    rows = [step(n, data_ms=40, split=(30, 10)) if n % 4 == 0 else step(n, data_ms=0) for n in range(16)]
    summary = summarise([rank_times(rows)])
    assert summary.mean_ns("data") == 10 * MS
    assert summary.mean_ns("data_fetch") == 7.5 * MS


def test_a_split_known_for_too_little_is_not_given() -> None:
    rows = [step(n, data_ms=10, split=(6, 3)) for n in range(8)] + [step(n, data_ms=10) for n in (8, 9)]
    assert summarise([rank_times(rows)]).mean_ns("data_fetch") is None


def test_only_the_straggler_may_be_known() -> None:
    summary = summarise([rank_times([step(n, comm_ms=10) for n in range(5)], parts_ms={"straggler": [4.0] * 5})])
    assert summary.mean_ns("straggler") == 4 * MS
    assert summary.mean_ns("interconnect") is None


def test_the_ranks_of_a_step_are_one_observation() -> None:
    rows = [step(n, compute_ms=8 + n % 2) for n in range(10)]
    one, four = summarise([rank_times(rows)]), summarise([rank_times(rows)] * 4)
    expected = np.std([8 * MS, 9 * MS] * 5, ddof=1) / np.sqrt(10)
    assert one.spreads["compute"].standard_error_ns == pytest.approx(expected)
    assert four.spreads["compute"].standard_error_ns == pytest.approx(expected)
    assert summarise([rank_times(rows[:1])]).spreads["compute"].standard_error_ns is None


def test_nothing_steady_has_no_means() -> None:
    for ranks in ([], [rank_times([step(0)], [False])]):
        summary = summarise(ranks)
        assert summary.steady_steps == 0
        assert all(summary.mean_ns(name) is None and summary.share(name) is None for name in TIMES)
