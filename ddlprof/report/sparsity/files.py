"""The result of `ddlprof sparsity` for programs: JSON and CSV with the same names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddlprof.analysis.sparsity.hints import hints, missing, realisable
from ddlprof.analysis.sparsity.potential import LayerPotential, Potential, Products, speedups
from ddlprof.model.sparsity import LstmTiming, SparsityCounts
from ddlprof.report.csv_cells import csv_text
from ddlprof.report.lines import json_text

COLUMNS = (
    "layer", "kind", "shape", "calls", "macs_share", "input_zeros", "gradient_zeros",
    "forward_macs", "forward_needed", "forward_skippable", "data_macs", "data_needed", "data_skippable",
    "weight_macs", "weight_needed", "weight_skippable", "backward_speedup", "iteration_speedup", "structured_speedup",
    "zero_rows", "zero_columns", "fitting_fours", "padding",
)  # fmt: skip
"""Columns of the CSV file and keys of a layer in the JSON. Shares are 0 to 1, speed-ups how many times as fast."""


def as_csv(found: Potential) -> str:
    """One row for each layer."""
    return csv_text(COLUMNS, [_row(each) for each in found.layers])


def as_json(name: str, counts: SparsityCounts, found: Potential, timings: list[LstmTiming] | None) -> str:
    """Everything; null for what was not measured."""
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
