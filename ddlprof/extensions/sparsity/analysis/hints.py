"""Why there are zeros or none, and how much of the ideal speed-up is possible on hardware that one can buy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlprof.base.units import listed
from ddlprof.extensions.sparsity.analysis.potential import LayerPotential, Potential
from ddlprof.extensions.sparsity.model import SparsityCounts

DENSE = 0.02
"""A share of zeros below this is chance: underflow, zeros in a batch or an embedding."""
WORTH = 1.1
"""A speed-up below this would be lost again by gathering the rest."""
MUCH_PADDING = 0.1
SOME_ROWS = 0.05

NORMS = ("BatchNorm", "NativeLayerNorm", "NativeGroupNorm", "InstanceNorm", "RmsNorm", "FusedRmsNorm")
_RELUS = ("Relu", "Threshold", "Hardtanh")
_DROPOUTS = ("Dropout", "NativeDropout", "FusedDropout")


def hints(found: Potential) -> list[str]:
    """Where zeros come from or are lost, in one or two sentences each."""
    if not any((each.input_zeros or 0) > DENSE or (each.gradient_zeros or 0) > DENSE for each in found.layers):
        return ["no layer has zeros to speak of: no ReLU or dropout comes before one (GELU, SiLU and tanh make none)"]
    told: list[tuple[Callable[[LayerPotential], bool], str]] = [
        (
            _norm_before_relu,
            "a normalisation between the layer and its ReLU makes the gradients of its outputs dense; what is left to"
            " skip in backward are the zeros of its inputs",
        ),
        (
            lambda each: _relu_first(each) and (each.gradient_zeros or 0) > DENSE,
            "the ReLU right behind the layer stops gradients: zeros of its outputs are zeros of their gradients",
        ),
        (
            lambda each: any("MaxPool" in name for name in each.counts.after) and (each.gradient_zeros or 0) > DENSE,
            "max-pooling sends each gradient to one place of its window; the others are zero",
        ),
        (
            lambda each: any(name in _DROPOUTS for name in each.counts.before) and (each.input_zeros or 0) > DENSE,
            "dropout drops other neurons for each sample, so its zeros are unstructured; the same neurons for a whole"
            " batch would make the product smaller",
        ),
        (
            lambda each: (each.padding or 0) > MUCH_PADDING,
            "more than a tenth of the multiply-adds that are usually counted for the layer are with padding; they are"
            " left out above",
        ),
    ]
    return [f"{_names(layers)}: {text}" for tells, text in told if (layers := [e for e in found.layers if tells(e)])]


def realisable(found: Potential) -> list[str]:
    """What can be saved today: nothing by unstructured zeros; for structured ones, how."""
    lines = [
        "zeros here and there (unstructured): nothing of it can be had on today's GPUs and CPUs; their dense products"
        " take as long with zeros, and sparse ones pay from some 90 % zeros on. It needs hardware that skips them"
    ]
    speedup = found.total.structured_speedup
    if speedup is not None and speedup >= WORTH:
        lines.append(
            f"whole rows and columns of zeros (structured): {speedup:.2f} times as fast at best, by leaving them out of"
            f" dense products; most of it in {_names(_most_structured(found.layers))}"
        )
    else:
        lines.append("whole rows and columns of zeros (structured): next to none, so there is nothing to leave out")
    rows = [each for each in found.layers if (each.zero_rows or 0) > SOME_ROWS]
    if rows:
        share = max(each.zero_rows or 0 for each in rows)
        lines.append(
            f"{_names(rows)}: up to {100 * share:.0f} % of the rows are all zero, as padded sequences are: batches of"
            " sequences of one length, or packed ones, save them"
        )
    fours = [each for each in found.layers if each.fitting_fours is not None]
    if fours:
        fitting = sum(each.counts.fitting_fours for each in fours) / sum(each.counts.fours for each in fours)
        lines.append(
            f"2:4 (two zeros in each four neighbours, for sparse tensor cores): {100 * fitting:.0f} % of the fours of"
            " the inputs fit; they need all, so it takes weights that are pruned to it"
        )
    return lines


def missing(counts: SparsityCounts) -> list[str]:
    """What could not be counted, and why."""
    lines = []
    if counts.unseen:
        why = (
            "torch.compile has them, and a hook there would make it compile again"
            if counts.compiled
            else "they are not called as modules"
        )
        lines.append(f"not seen: {listed(counts.unseen)} ({why})")
    return lines + counts.notes


def _norm_before_relu(layer: LayerPotential) -> bool:
    names = layer.counts.after
    norm = next((place for place, name in enumerate(names) if any(each in name for each in NORMS)), None)
    if norm is None or (layer.gradient_zeros or 0) > DENSE:
        return False
    return any(name in _RELUS for name in names[norm:])


def _relu_first(layer: LayerPotential) -> bool:
    return next((name in _RELUS for name in layer.counts.after if name in _RELUS or "Norm" in name), False)


def _most_structured(layers: Sequence[LayerPotential]) -> list[LayerPotential]:
    saved = {id(each): each.products.structured_macs - each.products.structured for each in layers}
    return sorted(layers, key=lambda each: saved[id(each)], reverse=True)[:2]


def _names(layers: Sequence[LayerPotential]) -> str:
    return listed([each.counts.name for each in layers])
