"""The output of `ddlprof features`: the counts of a model, for people."""

from __future__ import annotations

from ddlprof.model.manifest import ModelFacts
from ddlprof.report.lines import text_of

_UNKNOWN = "not known"


def as_table(facts: ModelFacts, notes: list[str]) -> str:
    """One line for each count, then remarks about them."""
    rows = [
        ("model", facts.name or _UNKNOWN),
        ("layers", _number(facts.layers)),
        ("parameter tensors", _number(facts.parameter_tensors)),
        ("parameters", _number(facts.parameters)),
        ("gradients", _UNKNOWN if facts.gradient_bytes is None else _scaled(facts.gradient_bytes, "B")),
        ("FLOPs per sample", _flops(facts)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    return text_of([*lines, *(f"note: {note}" for note in notes)])


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _flops(facts: ModelFacts) -> str:
    forward, backward = facts.forward_flops_per_sample, facts.backward_flops_per_sample
    if forward is None or backward is None:
        return _UNKNOWN
    return f"{_scaled(forward + backward)} (forward {_scaled(forward)}, backward {_scaled(backward)})"


def _scaled(value: float, unit: str = "") -> str:
    """The number with three digits and a decimal prefix: `24.5 G`."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()
