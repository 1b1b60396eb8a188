"""The result of `ddlprof sparsity` for people."""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.analysis.sparsity.hints import hints, missing, realisable
from ddlprof.analysis.sparsity.potential import LayerPotential, Potential, Products, speedups
from ddlprof.base.units import scale_for
from ddlprof.model.sparsity import LstmTiming, SparsityCounts
from ddlprof.report.columns import aligned
from ddlprof.report.lines import text_of, wrapped

_NONE = "-"
_WIDTH = 110
_LABEL = 8
_HEADS = (
    "LAYER", "KIND", "SHAPE", "MACS", "ZEROS X", "ZEROS DY", "FORWARD", "DATA", "WEIGHT", "BACKWARD", "ITERATION",
)  # fmt: skip
_NUMBERS = range(3, len(_HEADS))


def as_table(name: str, counts: SparsityCounts, found: Potential, timings: Sequence[LstmTiming] = ()) -> str:
    """The layers, their sum, and what that means."""
    total = found.total
    head = (
        f"ddlprof  sparsity {name} · {len(counts.steps)} of {counts.steps_seen} steps counted · without zeros:"
        f" backward {_times(total.backward_speedup)}, iteration {_times(total.iteration_speedup)} as fast"
    )
    rows = [_row(each) for each in found.layers]
    everything = ["all", "", "", _percent(1.0), _NONE, _NONE, *_products(total)]
    lines = [head, "", *aligned([_HEADS, *rows, everything], right=_NUMBERS), ""]
    lines += _labelled("Columns", [_explanation()])
    lines += _labelled("Trend", _trend(counts))
    lines += _labelled("Hint", hints(found))
    lines += _labelled("Today", realisable(found))
    lines += _labelled("LSTM", [_compared(each) for each in timings])
    lines += _labelled("Note", missing(counts))
    return text_of(lines)


def _row(layer: LayerPotential) -> list[str]:
    counts = layer.counts
    zeros = [_percent(layer.macs_share), _percent(layer.input_zeros), _percent(layer.gradient_zeros)]
    return [counts.name, counts.kind, counts.shape, *zeros, *_products(layer.products)]


def _products(products: Products) -> list[str]:
    skippable = products.forward_skippable, products.data_skippable, products.weight_skippable
    return [*map(_percent, skippable), _times(products.backward_speedup), _times(products.iteration_speedup)]


def _explanation() -> str:
    return (
        "zeros of the inputs (x) and of the gradients of the outputs (dy); the share of the multiply-adds (MACs) of"
        " forward, data gradient and weight gradient that they make unnecessary; how many times as fast both products"
        " of backward, and all three, would be if these took no time"
    )


def _compared(timing: LstmTiming) -> str:
    """Which LSTM is fastest here, also where it is not ours."""
    times = {"torch.nn.LSTM": timing.torch_s, "structured": timing.structured_s, "random": timing.random_s}
    fastest = min(times, key=lambda name: times[name])
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


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    lines = [line for text in texts for line in wrapped(text, _WIDTH - _LABEL)]
    heads = [label] + [""] * (len(lines) - 1)
    return [f"{head:{_LABEL}} {line}" for head, line in zip(heads, lines, strict=False)]


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f} %"


def _times(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}x"
