"""The result of `ddlprof sparsity` for programs: JSON and CSV with the same names."""

from __future__ import annotations

from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import NOT_KNOWN, tenths_of_percent, times
from ddlprof.extensions.sparsity.analysis.hints import hints, missing, realisable
from ddlprof.extensions.sparsity.analysis.potential import LayerPotential, Potential, Products, speedups
from ddlprof.extensions.sparsity.model import SparsityCounts
from ddlprof.report.json_csv import json_text
from ddlprof.report.table import Table, fields
from ddlprof.report.text import aligned, labelled

_PRODUCTS = ("forward", "data", "weight")
_SUMS = Table[Products](
    *fields(*(f"{name}_{what}" for name in _PRODUCTS for what in ("macs", "needed", "skippable"))),
    *fields("backward_speedup", "iteration_speedup", "structured_speedup"),
)
TABLE = Table[LayerPotential](
    *fields("layer=counts.name", "kind=counts.kind", "shape=counts.shape", "calls=counts.calls"),
    *fields("macs_share", "input_zeros", "gradient_zeros", *(f"{name}=products.{name}" for name in _SUMS.heads)),
    *fields("zero_rows", "zero_columns", "fitting_fours", "padding"),
)
"""Shares are 0 to 1, speed-ups how many times as fast."""
_labelled = partial(labelled, width=111)
_HEADS = (
    "LAYER", "KIND", "SHAPE", "MACS", "ZEROS X", "ZEROS DY", "FORWARD", "DATA", "WEIGHT", "BACKWARD", "ITERATION",
)  # fmt: skip
_NUMBERS = range(3, len(_HEADS))


def as_json(name: str, counts: SparsityCounts, found: Potential) -> str:
    """The whole result; null for what was not measured."""
    steps = [
        {"step": step, "backward_speedup": backward, "iteration_speedup": iteration}
        for step, backward, iteration in speedups(counts.steps)
    ]
    return json_text(
        {
            "name": name,
            "steps_seen": counts.steps_seen,
            "steps_counted": len(counts.steps),
            "device": counts.device,
            "total": _SUMS.record(found.total),
            "steps": steps,
            "layers": TABLE.records(found.layers),
            "hints": hints(found),
            "realisable": realisable(found),
            "notes": missing(counts),
        }
    )


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else tenths_of_percent(share)


def _times(factor: float | None) -> str:
    return NOT_KNOWN if factor is None else times(factor)


def as_table(name: str, counts: SparsityCounts, found: Potential) -> str:
    """The text with the layers, their sum, and a conclusion."""
    total = found.total
    head = (
        f"ddlprof  sparsity {name} · {len(counts.steps)} of {counts.steps_seen} steps counted · without zeros:"
        f" backward {_times(total.backward_speedup)}, iteration {_times(total.iteration_speedup)} as fast"
    )
    rows = [_cells(each) for each in found.layers]
    everything = ["all", "", "", _percent(1.0), NOT_KNOWN, NOT_KNOWN, *_product_cells(total)]
    lines = [head, "", *aligned([_HEADS, *rows, everything], right=_NUMBERS), ""]
    lines += _labelled("Columns", _explanation())
    lines += _labelled("Trend", *_trend(counts))
    lines += _labelled("Hint", *hints(found))
    lines += _labelled("Today", *realisable(found))
    lines += _labelled("Note", *missing(counts))
    return text_of(lines)


def _cells(layer: LayerPotential) -> list[str]:
    counts = layer.counts
    zeros = [_percent(layer.macs_share), _percent(layer.input_zeros), _percent(layer.gradient_zeros)]
    return [counts.name, counts.kind, counts.shape, *zeros, *_product_cells(layer.products)]


def _product_cells(products: Products) -> list[str]:
    skippable = products.forward_skippable, products.data_skippable, products.weight_skippable
    return [*map(_percent, skippable), _times(products.backward_speedup), _times(products.iteration_speedup)]


def _explanation() -> str:
    return (
        "zeros of the inputs (x) and of the gradients of the outputs (dy); the share of the multiply-adds (MACs) of"
        " forward, data gradient and weight gradient that they make unnecessary; how many times as fast both products"
        " of backward, and all three, would be if these took no time"
    )


def _trend(counts: SparsityCounts) -> list[str]:
    """The first and the last counted step, where there are several."""
    steps = speedups(counts.steps)
    if len(steps) < 2:
        return []
    told = [f"{_times(backward)} in step {step}" for step, backward, _ in (steps[0], steps[-1])]
    return [f"backward {' and '.join(told)}"]
