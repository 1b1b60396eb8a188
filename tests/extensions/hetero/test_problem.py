"""Layers as DistributedDataParallel puts their gradients into buckets."""

from __future__ import annotations

from ddlprof.extensions.hetero.problem import GradientBucket, grouped

MIB = 2**20


def test_a_bucket_is_closed_once_it_is_full_from_the_last_layer_on() -> None:
    sizes = [10, 20, 10, 2, 0.5, 0.6]
    groups = grouped([GradientBucket(str(number), size * MIB, 1 / 6) for number, size in enumerate(sizes)])
    assert [(group.name, group.layers) for group in groups] == [("0", 1), ("1 to 3", 3), ("4 to 5", 2)]
