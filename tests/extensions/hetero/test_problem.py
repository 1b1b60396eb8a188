"""Layers as DistributedDataParallel puts their gradients into buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddlprof.extensions.hetero.problem import GradientBucket, grouped

MIB = 2**20


def test_a_bucket_is_closed_once_it_is_full_from_the_last_layer_on() -> None:
    sizes = [10, 20, 10, 2, 0.5, 0.6]
    groups = grouped([GradientBucket(str(number), size * MIB, 1 / 6) for number, size in enumerate(sizes)])
    assert [(group.name, group.layers) for group in groups] == [("0", 1), ("1 to 3", 3), ("4 to 5", 2)]


@given(st.lists(st.tuples(st.floats(0, 1e8), st.floats(0, 1)), min_size=1, max_size=30))
def test_nothing_is_lost(layers: list[tuple[float, float]]) -> None:
    parts = [GradientBucket(str(number), size, share) for number, (size, share) in enumerate(layers)]
    groups = grouped(parts)
    assert sum(group.layers for group in groups) == len(parts)
    assert abs(sum(group.gradient_bytes for group in groups) - sum(size for size, _ in layers)) < 1
    assert abs(sum(group.share for group in groups) - sum(share for _, share in layers)) < 1e-9
    assert groups[0].name.startswith("0")
