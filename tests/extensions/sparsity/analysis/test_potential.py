"""Speed-ups and sentences from counts that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.extensions.sparsity.analysis.hints import hints, missing, realisable
from ddlprof.extensions.sparsity.analysis.potential import potential, speedups
from ddlprof.extensions.sparsity.model import LayerCounts, SparsityCounts, StepCounts


def layer(**more: Any) -> LayerCounts:
    values: dict[str, Any] = {
        "name": "a", "kind": "Linear", "shape": "8 -> 4", "calls": 1, "inputs": 100, "input_zeros": 50,
        "gradients": 100, "gradient_zeros": 25, "forward_macs": 100, "forward_needed": 50, "data_macs": 100,
        "data_needed": 25, "weight_macs": 100, "weight_needed": 25, "structured_macs": 300,
        "forward_structured": 50, "data_structured": 50, "weight_structured": 50,
    }  # fmt: skip
    return LayerCounts(**(values | more))


def test_speedups_are_ratios_of_multiply_adds() -> None:
    found = potential(SparsityCounts(layers=[layer(), layer(name="b", data_macs=0, data_needed=0), layer(calls=0)]))
    first, second = found.layers
    assert (first.products.backward_speedup, first.products.iteration_speedup) == (4.0, 3.0)
    assert second.products.data_skippable is None
    assert found.total.backward_speedup == 300 / 75
    assert first.macs_share == 0.6
    assert (first.input_zeros, first.gradient_zeros, first.zero_rows) == (0.5, 0.25, None)
    assert found.total.structured_speedup == 2.0


def test_nothing_left_to_do_is_no_number() -> None:
    only_zeros = layer(data_needed=0, weight_needed=0)
    assert potential(SparsityCounts(layers=[only_zeros])).total.backward_speedup is None
    assert speedups([StepCounts(3, 10, 5, 20, 5)]) == [(3, 4.0, 3.0)]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"after": ["NativeBatchNorm", "Relu"], "gradient_zeros": 0}, "normalisation"),
        ({"after": ["Relu", "NativeBatchNorm"]}, "right behind"),
        ({"after": ["Relu", "MaxPool2DWithIndices"]}, "max-pooling"),
        ({"before": ["Dropout"]}, "dropout drops"),
        ({"padded_macs": 50}, "padding"),
        ({"input_zeros": 0, "gradient_zeros": 0}, "no layer has zeros"),
    ],
)
def test_hints(more: dict[str, Any], word: str) -> None:
    found = hints(potential(SparsityCounts(layers=[layer(**more)])))
    assert any(word in hint for hint in found)
    assert not any(word in hint for hint in hints(potential(SparsityCounts(layers=[layer()]))))


def test_what_can_be_had() -> None:
    structured = realisable(potential(SparsityCounts(layers=[layer(rows=10, zero_rows=4, fours=10, fitting_fours=3)])))
    assert "nothing of it can be had" in structured[0]
    assert "2.00 times" in structured[1]
    assert "40 %" in structured[2]
    assert "30 %" in structured[3]
    full = {"forward_structured": 100, "data_structured": 100, "weight_structured": 100}
    assert "next to none" in realisable(potential(SparsityCounts(layers=[layer(**full)])))[1]


def test_what_was_not_seen_is_named() -> None:
    assert "torch.compile" in missing(SparsityCounts(unseen=["x"], compiled=True))[0]
    assert missing(SparsityCounts(unseen=["x"], notes=["odd"]))[1] == "odd"
