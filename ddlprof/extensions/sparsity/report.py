"""The result of `ddlprof sparsity` for programs: JSON and CSV with the same names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ddlprof.base.text import text_of
from ddlprof.base.units import NOT_KNOWN, scale_for, tenths_of_percent, times
from ddlprof.extensions.sparsity.analysis.hints import hints, missing, realisable
from ddlprof.extensions.sparsity.analysis.potential import LayerPotential, Potential, Products, speedups
from ddlprof.extensions.sparsity.model import LstmTiming, SparsityCounts
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.text import aligned, labelled

COLUMNS = (
    "layer", "kind", "shape", "calls", "macs_share", "input_zeros", "gradient_zeros",
    "forward_macs", "forward_needed", "forward_skippable", "data_macs", "data_needed", "data_skippable",
    "weight_macs", "weight_needed", "weight_skippable", "backward_speedup", "iteration_speedup", "structured_speedup",
    "zero_rows", "zero_columns", "fitting_fours", "padding",
)  # fmt: skip
"""Columns of the CSV file and keys of a layer in the JSON. Shares are 0 to 1, speed-ups how many times as fast."""
_labelled = partial(labelled, width=111)
_HEADS = (
    "LAYER", "KIND", "SHAPE", "MACS", "ZEROS X", "ZEROS DY", "FORWARD", "DATA", "WEIGHT", "BACKWARD", "ITERATION",
)  # fmt: skip
_NUMBERS = range(3, len(_HEADS))


def as_csv(found: Potential) -> str:
    """One row for each layer."""
    return csv_text(COLUMNS, [_row(each) for each in found.layers])


def as_json(name: str, counts: SparsityCounts, found: Potential, timings: list[LstmTiming] | None) -> str:
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
            "total": _sums(found.total),
            "steps": steps,
            "layers": [_row(each) for each in found.layers],
            "hints": hints(found),
            "realisable": realisable(found),
            "notes": missing(counts),
            "lstms": [asdict(each) for each in counts.lstms],
            "lstm_timings": None if timings is None else [asdict(each) for each in timings],
        }
    )


def _row(layer: LayerPotential) -> dict[str, Any]:
    counts = layer.counts
    values = {
        "layer": counts.name,
        "kind": counts.kind,
        "shape": counts.shape,
        "calls": counts.calls,
        "macs_share": layer.macs_share,
        "input_zeros": layer.input_zeros,
        "gradient_zeros": layer.gradient_zeros,
        "zero_rows": layer.zero_rows,
        "zero_columns": layer.zero_columns,
        "fitting_fours": layer.fitting_fours,
        "padding": layer.padding,
        **_sums(layer.products),
    }
    return {name: values[name] for name in COLUMNS}


def _sums(products: Products) -> dict[str, Any]:
    names = ("forward", "data", "weight")
    counts = {f"{name}_{what}": getattr(products, f"{name}_{what}") for name in names for what in ("macs", "needed")}
    shares = {f"{name}_skippable": getattr(products, f"{name}_skippable") for name in names}
    kinds = ("backward", "iteration", "structured")
    return counts | shares | {f"{kind}_speedup": getattr(products, f"{kind}_speedup") for kind in kinds}


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else tenths_of_percent(share)


def _times(factor: float | None) -> str:
    return NOT_KNOWN if factor is None else times(factor)


def as_table(name: str, counts: SparsityCounts, found: Potential, timings: Sequence[LstmTiming] = ()) -> str:
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
    lines += _labelled("LSTM", *map(_compared, timings))
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


def _compared(timing: LstmTiming) -> str:
    """A sentence on the fastest LSTM here, even where it is not the one of ddlprof."""
    seconds = {"torch.nn.LSTM": timing.torch_s, "structured": timing.structured_s, "random": timing.random_s}
    fastest = min(seconds, key=lambda name: seconds[name])
    ours = "ddlprof.nn.StructuredDropoutLSTM"
    best = {"structured": ours, "random": f"{ours} with structured=False"}.get(fastest, fastest)
    scale = scale_for(timing.torch_s)
    return (
        f"{timing.name} ({timing.shape}), forward and backward: torch.nn.LSTM {scale.time(timing.torch_s)}; dropping"
        f" {100 * timing.dropout:.0f} % of inputs and hidden states: structured {scale.time(timing.structured_s)},"
        f" random in the same code {scale.time(timing.random_s)}. The fastest here is {best}"
    )


def _trend(counts: SparsityCounts) -> list[str]:
    """The first and the last counted step, where there are several."""
    steps = speedups(counts.steps)
    if len(steps) < 2:
        return []
    told = [f"{_times(backward)} in step {step}" for step, backward, _ in (steps[0], steps[-1])]
    return [f"backward {' and '.join(told)}"]
