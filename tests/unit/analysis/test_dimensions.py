"""Communication by dimension of the layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.dimensions import COLUMNS, SHOWN, column_name, fitted
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.model.classes import COMM_PARTS
from ddlprof.model.records import MISSING, NEVER, Aggregate, CollectiveShape, CollectiveTimes, GroupFacts
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, with_collectives, write_rank

STEPS = 30
GROUPS = (GroupFacts("t", "tensor", "tensor", 2), GroupFacts("d", "data", "", 2))
SHAPES = (CollectiveShape("t", "allreduce", 1000, 2), CollectiveShape("d", "allreduce", 4000, 2))


def times(tensor: tuple[int, int], data: tuple[int, int]) -> list[CollectiveTimes]:
    """Ready and end in microseconds of one collective of each dimension, all of which computing waits for."""
    return [CollectiveTimes(ready, end, ready, end - ready) for ready, end in (tensor, data)]


def attempt_of(
    tmp_path: Path, of_ranks: list[list[CollectiveTimes]], groups: tuple[GroupFacts, ...] = GROUPS,
    comm_ms: tuple[float, ...] = (4, 4),
    shapes: tuple[CollectiveShape, ...] = SHAPES, aggregates: tuple[Aggregate, ...] = (),
) -> Attempt:  # fmt: skip
    for rank, pairs in enumerate(of_ranks):
        rows = [with_collectives(step(n, comm_ms=comm_ms[rank]), (n,) * len(shapes)) for n in range(STEPS)]
        write_rank(tmp_path, header(rank, len(of_ranks)), rows, shapes, pairs * STEPS, [*aggregates, *groups])
    (attempt,) = analyse(load_run(tmp_path))
    return attempt


def means_ms(attempt: Attempt) -> dict[str, float | None]:
    spreads = attempt.summary.dimensions
    return {name: None if spread.mean_ns is None else spread.mean_ns / MS for name, spread in spreads.items()}


def assert_adds_up(attempt: Attempt) -> None:
    summary, means = attempt.summary, means_ms(attempt)
    for part in ("", *COMM_PARTS):
        known = [means[name] for each in SHOWN if (name := column_name(each, part)) in means]
        whole = summary.mean_ns(part or "comm")
        assert (None in known) == (whole is None)
        if whole is not None:
            assert sum(each for each in known if each is not None) == pytest.approx(whole / MS, abs=1e-9)
    for each in SHOWN:
        parts = [means.get(column_name(each, part), 0.0) for part in COMM_PARTS]
        if None not in parts:
            assert sum(each for each in parts if each) == pytest.approx(means.get(column_name(each), 0.0), abs=1e-9)


def test_each_dimension_has_its_own_transfer_and_wait(tmp_path: Path) -> None:
    # Rank 1 comes 2 ms late for the tensor group; the data group takes 1 ms on both.
    late = [times((1000, 4000), (5000, 6000)), times((3000, 4000), (5000, 6000))]
    attempt = attempt_of(tmp_path, late, comm_ms=(4, 2))
    assert_adds_up(attempt)
    means = means_ms(attempt)
    assert means["comm_tensor"] == pytest.approx((3 + 1) / 2)
    assert means["comm_tensor_straggler"] == pytest.approx(2 / 2)
    assert (
        means["comm_tensor_interconnect"] == means["comm_data"] == means["comm_data_interconnect"] == pytest.approx(1)
    )
    assert means["comm_data_straggler"] == 0
    traffic = attempt.ranks[0].traffic.dimensions
    assert {name: (each.collectives, each.bytes) for name, each in traffic.items()} == {
        "tensor": (sum(attempt.ranks[0].times.steady), 1000 * sum(attempt.ranks[0].times.steady)),
        "data": (sum(attempt.ranks[0].times.steady), 4000 * sum(attempt.ranks[0].times.steady)),
    }
    assert traffic["data"].bus_gb_s == pytest.approx(4000 / 1e-3 / 1e9)


def test_a_little_that_no_collective_exposed_is_shared_in_proportion(tmp_path: Path) -> None:
    both = times((1000, 3000), (5000, 6800))
    attempt = attempt_of(tmp_path, [both, both])
    assert_adds_up(attempt)
    means = means_ms(attempt)
    assert "comm_unknown" not in means
    assert means["comm_tensor"] == pytest.approx(4 * 2 / 3.8)


def test_much_that_no_collective_exposed_is_of_no_known_dimension(tmp_path: Path) -> None:
    both = times((1000, 2000), (5000, 6000))
    attempt = attempt_of(tmp_path, [both, both])
    assert_adds_up(attempt)
    means = means_ms(attempt)
    assert (means["comm_tensor"], means["comm_data"], means["comm_unknown"]) == pytest.approx((1, 1, 2))


def test_everything_is_of_the_only_dimension(tmp_path: Path) -> None:
    one = [times((1000, 1500), (0, 0))[0]]
    attempt = attempt_of(tmp_path, [one, one], shapes=SHAPES[:1])
    assert_adds_up(attempt)
    assert means_ms(attempt)["comm_tensor"] == pytest.approx(4)


def test_sums_without_rows_are_divided_as_the_rows_are(tmp_path: Path) -> None:
    both = times((1000, 2000), (5000, 8000))
    summed = Aggregate(
        STEPS, 100, 100 * 18 * MS, 100 * 8 * MS, 100 * MS, None, None, 0, 100 * 8 * MS, 100 * MS, 100, 3200
    )
    attempt = attempt_of(tmp_path, [both, both], aggregates=(summed,))
    assert_adds_up(attempt)
    means, comm = means_ms(attempt), attempt.summary.mean_ns("comm") or 0
    assert comm > 4 * MS
    assert means["comm_data"] == pytest.approx(0.75 * comm / MS)


def test_ranks_with_different_dimensions(tmp_path: Path) -> None:
    for rank in range(2):
        shapes, pairs = ((SHAPES, times((1000, 3000), (5000, 7000))), (SHAPES[1:], [times((0, 0), (5000, 7000))[1]]))[
            rank
        ]
        rows = [with_collectives(step(n, comm_ms=4 - 2 * rank), (n,) * len(shapes)) for n in range(STEPS)]
        write_rank(tmp_path, header(rank, 2), rows, shapes, list(pairs) * STEPS, GROUPS)
    (attempt,) = analyse(load_run(tmp_path))
    assert means_ms(attempt)["comm_tensor"] == pytest.approx(1)
    assert means_ms(attempt)["comm_data"] == pytest.approx(2)
    assert sum(means_ms(attempt)[name] or 0 for name in ("comm_tensor", "comm_data")) == pytest.approx(
        (attempt.summary.mean_ns("comm") or 0) / MS
    )


def test_nothing_is_told_where_no_group_is_known(tmp_path: Path) -> None:
    both = times((1000, 3000), (5000, 7000))
    attempt = attempt_of(tmp_path, [both, both], groups=())
    assert attempt.summary.dimensions == {}
    assert attempt.ranks[0].traffic.dimensions == {}


def test_the_end_that_nobody_knows_leaves_the_parts_empty(tmp_path: Path) -> None:
    endless = [CollectiveTimes(1000, NEVER, 1000, 2000), CollectiveTimes(5000, NEVER, 5000, 2000)]
    attempt = attempt_of(tmp_path, [endless, endless])
    means = means_ms(attempt)
    assert means["comm_tensor"] == means["comm_data"] == pytest.approx(2)
    assert {means[column_name(each, part)] for each in ("tensor", "data") for part in COMM_PARTS} == {None}
    assert_adds_up(attempt)
    assert set(means) <= set(COLUMNS)


def test_steps_without_their_collectives_are_missing(tmp_path: Path) -> None:
    both = times((1000, 3000), (5000, 7000))
    attempt_of(tmp_path, [both, both])
    run = load_run(tmp_path)
    run.ranks[0].untold = np.arange(STEPS) == STEPS - 1
    (attempt,) = analyse(run)
    column = attempt.ranks[0].times.dimensions["comm_tensor"]
    assert column[:-1].min() == 2 * MS
    assert column[-1] == MISSING


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(-(10**12), 10**12), st.integers(0, 10**12)), min_size=6, max_size=6),
            st.floats(0, 1),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_fitted_parts_add_up_within_their_limits(rows: list[tuple[list[tuple[int, int]], float]]) -> None:
    parts = np.array([[part for part, _ in row] for row, _ in rows], dtype=np.int64)
    limits = np.array([[limit for _, limit in row] for row, _ in rows], dtype=np.int64)
    total = np.array([int(share * sum(limit for _, limit in row)) for row, share in rows], dtype=np.int64)
    found = fitted(parts, limits, total)
    assert found.sum(axis=1).tolist() == total.tolist()
    assert (found >= 0).all()
    assert (found <= limits).all()
