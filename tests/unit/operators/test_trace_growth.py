"""Two traces beside each other: what follows the batch."""

from __future__ import annotations

import pytest

from ddlprof.operators.trace_growth import counterparts, growing, merged, missing
from ddlprof.operators.trace_operators import Access, OperatorCall


def call(name: str, *shape: int, moved: float = 100.0) -> OperatorCall:
    return OperatorCall("forward", name, "elementwise", "fp32", shape, 0.0, 1.0, (Access(0, moved),), ())


@pytest.mark.parametrize(
    ("shape", "doubled", "index"),
    [((4, 3), (8, 3), 0), ((4, 3), (4, 6), 1), ((4, 3), (4, 3), None), ((1, 9, 5), (1, 9, 10), 2), ((5, 4), (6, 8), 1)],
)
def test_which_size_follows_the_batch(shape: tuple[int, ...], doubled: tuple[int, ...], index: int | None) -> None:
    assert growing(shape, doubled) == index


def test_equal_calls_are_one_operator() -> None:
    once = [call("add", 4, moved=50.0), call("mul", 4), call("add", 4, moved=50.0)]
    twice = [call("add", 8, moved=90.0), call("mul", 8, moved=200.0), call("add", 8, moved=90.0)]
    add, mul = merged(once, twice)
    assert (add.name, add.count, add.grows, add.fixed_bytes) == ("add", 2, 0, 10.0)
    assert (mul.name, mul.count, mul.fixed_bytes) == ("mul", 1, 0.0)


def test_a_copy_that_one_trace_does_without() -> None:
    once = [call("mm", 4), call("add", 4), call("mm", 4)]
    twice = [call("mm", 8), call("clone", 8), call("add", 8), call("mm", 8)]
    assert counterparts(once, twice) == [twice[0], twice[2], twice[3]]
    assert counterparts(twice, once) == [None, None, None, None]  # sizes do not shrink with more samples
    assert missing(once, twice) == 0
    assert missing([*once, call("tanh", 3)], twice) == pytest.approx(0.25)
