"""Shares of zeros and ideal speed-ups, of each layer and of all, from the counts of `ddlprof sparsity`.

Ideal: a machine that needs no time for a multiply-add with a zero, and as long as before for each other one. It knows
nothing of what else a step does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlprof.model.sparsity import LayerCounts, SparsityCounts, StepCounts


@dataclass(frozen=True)
class Products:
    """Multiply-adds of the three products. None in a share or a speed-up: there is no such product."""

    forward_macs: int
    forward_needed: int
    data_macs: int
    data_needed: int
    weight_macs: int
    weight_needed: int
    structured: int
    """The multiply-adds of all three without whole rows and columns of zeros, where these were counted."""
    structured_macs: int
    """All multiply-adds where these were counted."""

    @property
    def macs(self) -> int:
        """The multiply-adds of all three products."""
        return self.forward_macs + self.data_macs + self.weight_macs

    @property
    def forward_skippable(self) -> float | None:
        """The share of the forward product that zeros make unnecessary."""
        return _skippable(self.forward_macs, self.forward_needed)

    @property
    def data_skippable(self) -> float | None:
        """The share of the data gradient."""
        return _skippable(self.data_macs, self.data_needed)

    @property
    def weight_skippable(self) -> float | None:
        """The share of the weight gradient."""
        return _skippable(self.weight_macs, self.weight_needed)

    @property
    def backward_speedup(self) -> float | None:
        """How many times as fast backward would be."""
        return _ratio(self.data_macs + self.weight_macs, self.data_needed + self.weight_needed)

    @property
    def iteration_speedup(self) -> float | None:
        """How many times as fast forward and backward would be."""
        return _ratio(self.macs, self.forward_needed + self.data_needed + self.weight_needed)

    @property
    def structured_speedup(self) -> float | None:
        """The same for dense products without their rows and columns of zeros."""
        return _ratio(self.structured_macs, self.structured)


@dataclass(frozen=True)
class LayerPotential:
    """One layer. Shares are 0 to 1; None where there was nothing to take a share of."""

    counts: LayerCounts
    products: Products
    macs_share: float | None
    """Its part of the multiply-adds of all layers."""
    input_zeros: float | None
    gradient_zeros: float | None
    padding: float | None
    """The share of its forward product, as it is usually counted, that is with padding."""
    zero_rows: float | None
    zero_columns: float | None
    fitting_fours: float | None


@dataclass(frozen=True)
class Potential:
    """All layers in the order of their first call, and their sum."""

    layers: tuple[LayerPotential, ...]
    total: Products


def potential(counts: SparsityCounts) -> Potential:
    """The potential of every layer that was called, and of all."""
    called = [each for each in counts.layers if each.calls]
    products = [products_of([each]) for each in called]
    total = products_of(called)
    return Potential(tuple(_layer(*each, total.macs) for each in zip(called, products, strict=True)), total)


def products_of(layers: Iterable[LayerCounts]) -> Products:
    """The sums over some layers."""
    layers = list(layers)
    return Products(
        sum(each.forward_macs for each in layers),
        sum(each.forward_needed for each in layers),
        sum(each.data_macs for each in layers),
        sum(each.data_needed for each in layers),
        sum(each.weight_macs for each in layers),
        sum(each.weight_needed for each in layers),
        sum(each.forward_structured + each.data_structured + each.weight_structured for each in layers),
        sum(each.structured_macs for each in layers),
    )


def speedups(steps: Sequence[StepCounts]) -> list[tuple[int, float | None, float | None]]:
    """Of each counted step: its number, and how many times as fast backward and forward with backward would be."""
    return [
        (
            each.step,
            _ratio(each.backward_macs, each.backward_needed),
            _ratio(each.forward_macs + each.backward_macs, each.forward_needed + each.backward_needed),
        )
        for each in steps
    ]


def _layer(counts: LayerCounts, products: Products, macs: int) -> LayerPotential:
    return LayerPotential(
        counts,
        products,
        share(products.macs, macs),
        share(counts.input_zeros, counts.inputs),
        None if counts.gradient_zeros is None else share(counts.gradient_zeros, counts.gradients or 0),
        share(counts.padded_macs, counts.padded_macs + counts.forward_macs),
        share(counts.zero_rows, counts.rows),
        share(counts.zero_columns, counts.columns),
        share(counts.fitting_fours, counts.fours),
    )


def share(part: int, whole: int) -> float | None:
    """Part of a whole; None where there is none."""
    return part / whole if whole else None


def _skippable(macs: int, needed: int) -> float | None:
    return 1 - needed / macs if macs else None


def _ratio(macs: int, needed: int) -> float | None:
    return macs / needed if macs and needed else None
