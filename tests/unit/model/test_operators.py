"""The moments of a step that can be its peak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.model.operators import attended_share, highest

SIZES = st.integers(0, 1000).map(float)


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=60), st.floats(0.01, 100), st.floats(0.01, 100))
def test_no_moment_is_higher_than_the_few_that_are_kept(
    points: list[tuple[float, float]], first: float, second: float
) -> None:
    kept = highest(points)
    assert set(kept) <= set(points)
    assert max(first * x + second * y for x, y in kept) == pytest.approx(max(first * x + second * y for x, y in points))


def test_few_are_kept_of_a_backward_that_frees_as_it_goes() -> None:
    points = [(float(i), 100.0 - i) for i in range(100)]
    assert highest(points) == ((0.0, 100.0), (99.0, 1.0))
    assert highest([(1.0, 1.0), (0.0, 5.0), (3.0, 4.0), (3.0, 5.0)]) == ((3.0, 5.0),)
    assert highest([]) == ()


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_causal_attention_computes_the_tiles_that_its_mask_leaves(queries: int, keys: int) -> None:
    tile = 128
    rows, columns = -(-queries // tile), -(-keys // tile)
    seen = sum(min(row + 1, columns) for row in range(rows))
    assert attended_share(queries, keys) == pytest.approx(seen / (rows * columns))
