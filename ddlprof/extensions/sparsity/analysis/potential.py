"""Shares of zeros and ideal speed-ups of each layer and of all, from the counts of `ddlprof sparsity`.

Ideal means a machine that needs no time for a multiply-add with a zero, and the usual time for each other one. The rest
of a step is not considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlprof.extensions.sparsity.model import LayerCounts, SparsityCounts, StepCounts


@dataclass(frozen=True)
class Products:
    """Multiply-adds of the three products (forward, data gradient, weight gradient) of one or more layers.

    A share or speed-up is None if there is no such product.
    """

    forward_macs: int
    forward_needed: int
    data_macs: int
    data_needed: int
    weight_macs: int
    weight_needed: int
    structured: int
    """Multiply-adds without whole rows and columns of zeros, in products where these were counted."""
    structured_macs: int
    """All multiply-adds of these products."""

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
        """The share of the data gradient that zeros make unnecessary."""
        return _skippable(self.data_macs, self.data_needed)

    @property
    def weight_skippable(self) -> float | None:
        """The share of the weight gradient that zeros make unnecessary."""
        return _skippable(self.weight_macs, self.weight_needed)

    @property
    def backward_speedup(self) -> float | None:
        """How many times as fast the backward products would be."""
        return _ratio(self.data_macs + self.weight_macs, self.data_needed + self.weight_needed)

    @property
    def iteration_speedup(self) -> float | None:
        """How many times as fast forward and backward products would be."""
        return _ratio(self.macs, self.forward_needed + self.data_needed + self.weight_needed)

    @property
    def structured_speedup(self) -> float | None:
        """The same if only whole rows and columns of zeros are left out of dense products."""
        return _ratio(self.structured_macs, self.structured)


@dataclass(frozen=True)
class LayerPotential:
    """The potential of one layer. Shares are from 0 to 1; None if there is nothing to take a share of."""

    counts: LayerCounts
    products: Products
    macs_share: float | None
    """The layer's share of the multiply-adds of all layers."""
    input_zeros: float | None
    gradient_zeros: float | None
    padding: float | None
    """The share of the usual count of its forward product that is with padding."""
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
    """For each counted step its number, and the ideal speed-ups of backward and of forward with backward."""
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
    """`part / whole`; None if `whole` is 0."""
    return part / whole if whole else None


def _skippable(macs: int, needed: int) -> float | None:
    return 1 - needed / macs if macs else None


def _ratio(macs: int, needed: int) -> float | None:
    return macs / needed if macs and needed else None
