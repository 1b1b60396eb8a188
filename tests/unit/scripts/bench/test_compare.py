"""The plan of the runs that are compared."""

from __future__ import annotations

from scripts.bench.compare import KINDS, A, B, options_of, order


def test_the_runs_of_a_pair_are_made_in_turn() -> None:
    assert order(KINDS[0], 0) == ["data", A, B, "compute", "other"]
    assert order(KINDS[0], 1) == ["other", "compute", B, A, "data"]


def test_one_class_is_longer() -> None:
    sleeping, bound, computing = KINDS
    assert options_of(sleeping, A, 0.5) == options_of(sleeping, B, 0.5) == {}
    assert options_of(sleeping, "data", 0.5) == {"data-ms": 2.1}
    assert options_of(bound, "data", 0.5) == {"workers": 4, "data-ms": 30}
    assert options_of(computing, "other", 0.5) == {"compute-ms": 0, "burn": 120, "other-ms": 1.3}
