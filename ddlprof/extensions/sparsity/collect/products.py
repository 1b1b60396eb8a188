"""Counts, rather than estimates, the multiply-adds of one call of a layer that zeros make unnecessary.

Which these are is from Sarma et al. 2021 (arXiv 2109.07710), for y = W x. The forward product skips zeros of x. The
weight gradient skips zeros of x and of dy. The data gradient skips zeros of dy and, where x came out of a ReLU,
gradients of zeros of x. If zeros of x and dy were independent, with shares s_x and s_dy, the shares that remain would
be 1 - s_x, (1 - s_x)(1 - s_dy), and the same again. Here the pairs that really meet are counted: for each sample (and
each place, in a convolution) the nonzeros of x times those of dy. So each tensor is read only to count its nonzeros by
sample and place; the rest works on these counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ddlprof.extensions.sparsity.collect.zeros import Inner, Look, Term, Values, look

_BYTE, _SHORT = 2**8 - 1, 2**15 - 1


@dataclass(frozen=True)
class Geometry:
    """A convolution: place i of the small side meets places i * stride - padding + k * dilation of the large one."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """Padding of the large side, before and after, by dimension."""
    padding_mode: str
    groups: int

    def reached(self, filled: Any, features: int, small: tuple[int, ...]) -> Any:
        """For each (sample, group, place of the small side) the sum of the values of the large side that it meets.

        `filled`: counts of the large side, by (sample, group, places ...), each at most `features`.
        """
        most = features * math.prod(self.kernel)
        found = self._padded(filled).to(
            torch.uint8 if most <= _BYTE else torch.int16 if most <= _SHORT else torch.int32
        )
        for number, size in enumerate(small):
            found = self._along(found, number, size)
        return found

    def _padded(self, filled: Any) -> Any:
        if not any(map(any, self.padding)):
            return filled
        widths = [width for pair in reversed(self.padding) for width in pair]
        if self.padding_mode == "zeros":
            return torch.nn.functional.pad(filled, widths)
        return torch.nn.functional.pad(filled.double(), widths, mode=self.padding_mode)

    def _along(self, filled: Any, number: int, size: int) -> Any:
        """The sum along one dimension of the kernel.

        Done dimension by dimension, a 3 x 3 kernel takes four sums of tensors.
        """
        stride, dilation = self.stride[number], self.dilation[number]
        span = stride * (size - 1) + 1
        before = (slice(None),) * (2 + number)
        begins = range(0, self.kernel[number] * dilation, dilation)
        taps = [filled[before + (slice(begin, begin + span, stride),)] for begin in begins]  # noqa: RUF005 (3.10)
        found = taps[0]
        for place, tap in enumerate(taps[1:]):
            found = found.add_(tap) if place else found + tap
        return found

    def meetings(self, small: tuple[int, ...], large: tuple[int, ...]) -> Any:
        """For each place of the small side the number of places of the large side that it meets, without padding."""
        found = torch.ones((), dtype=torch.float64)
        for number, size in enumerate(small):
            along = list(self._meetings_along(number, size, large[number]))
            found = found.unsqueeze(-1) * torch.tensor(along, dtype=torch.float64)
        return found

    def _meetings_along(self, number: int, small: int, large: int) -> Iterator[int]:
        stride, dilation, (before, after) = self.stride[number], self.dilation[number], self.padding[number]
        low, high = (0, large) if self.padding_mode == "zeros" else (-before, large + after)
        for place in range(small):
            begin = place * stride - before
            yield sum(low <= begin + tap * dilation < high for tap in range(self.kernel[number]))


class Needs(NamedTuple):
    """What backward computes for the layer, and whether zeros of the input have no gradient."""

    data: bool
    weight: bool
    mask_known: bool


class LayerCall(Protocol):
    """One call of a layer with given shapes: how to count in its tensors and products."""

    def look_at_input(self, x: Any, with_structure: bool) -> Look:
        """Counts in the input `x`. `with_structure`: also looks for zeros that come together."""

    def look_at_gradient(self, dy: Any, with_structure: bool) -> Look | None:
        """Counts in the gradient `dy` of the output. None if it says nothing about the products."""

    def products(self, x: Look, dy: Any, with_forward: bool) -> Values:
        """The multiply-adds of the two backward products, and of the forward product if asked for."""


def _inputs(x: Look, filled: Any) -> Values:
    values: Values = {"calls": 1, "inputs": x.values, "input_zeros": Term(filled, -1, x.values)}
    if x.structure is not None:
        count = x.structure.column_filled.numel()
        values.update(columns=count, zero_columns=Term(x.structure.column_filled.sum(), -1, count))
        if x.structure.fours:
            values.update(fours=x.structure.fours, fitting_fours=Term(x.structure.fitting_fours))
    return values


def _add_structured(values: Values, macs: int, needs: Needs, data: Any, weight: Any) -> None:
    values["structured_macs"] = values.get("structured_macs", 0) + macs * (needs.data + needs.weight)
    if needs.data:
        values["data_structured"] = Term(data)
    if needs.weight:
        values["weight_structured"] = Term(weight)


class LinearCall:
    """A linear layer: y = x W^T."""

    def __init__(self, inputs: int, outputs: int, needs: Needs) -> None:
        self._inputs, self._outputs, self._needs = inputs, outputs, needs

    def look_at_input(self, x: Any, with_structure: bool) -> Look:
        return look(x, self._inputs, 0, 1, with_structure)

    def look_at_gradient(self, dy: Any, with_structure: bool) -> Look:
        return look(dy, self._outputs, 0, 1, with_structure)

    def products(self, x: Look, dy: Look, with_forward: bool) -> Values:
        macs, filled, both = x.values * self._outputs, Inner(dy.counts), Term(Inner(x.counts, dy.counts))
        values = self._forward(x, macs) if with_forward else {}
        values.update(gradients=dy.values, gradient_zeros=Term(filled, -1, dy.values))
        if self._needs.data:
            values["data_macs"] = macs
            values["data_needed"] = both if self._needs.mask_known else Term(filled, self._inputs)
        if self._needs.weight:
            values.update(weight_macs=macs, weight_needed=both)
        if x.structure is not None and dy.structure is not None:
            rows, columns = dy.counts.whole() != 0, dy.structure.column_filled.sum()
            weight = ((x.counts.whole() != 0) & rows).sum() * x.structure.column_filled.sum() * columns
            data = weight if self._needs.mask_known else rows.sum() * self._inputs * columns
            _add_structured(values, macs, self._needs, data, weight)
        return values

    def _forward(self, x: Look, macs: int) -> Values:
        filled = Inner(x.counts)
        values = _inputs(x, filled)
        values.update(forward_macs=macs, forward_needed=Term(filled, self._outputs))
        if x.structure is not None:
            rows, columns = x.counts.whole() != 0, x.structure.column_filled.sum()
            values.update(rows=rows.numel(), zero_rows=Term(rows.sum(), -1, rows.numel()))
            values["forward_structured"] = Term(rows.sum() * columns * self._outputs)
            values["structured_macs"] = macs
        return values


class ConvolutionCall:
    """A convolution or, with `transposed`, its transpose, whose output is the large side."""

    def __init__(
        self, x_shape: Any, y_shape: Any, geometry: Geometry, channels: tuple[int, int], transposed: bool, needs: Needs
    ) -> None:
        """`channels`: those of input and output."""
        self._geometry, self._channels, self._transposed, self._needs = geometry, channels, transposed, needs
        self._places = len(geometry.kernel)
        before, after = tuple(x_shape[-self._places :]), tuple(y_shape[-self._places :])
        self._small, self._large = (before, after) if transposed else (after, before)
        self._per_group = channels[0] // geometry.groups, channels[1] // geometry.groups
        self._meetings = geometry.meetings(self._small, self._large)
        pairs = math.prod(x_shape) // math.prod(before) * self._per_group[1]
        self._macs = pairs * round(float(self._meetings.sum()))
        self._padded = pairs * math.prod(geometry.kernel) * math.prod(self._small) - self._macs

    def look_at_input(self, x: Any, with_structure: bool) -> Look:
        return look(x, self._channels[0], self._places, self._geometry.groups, with_structure)

    def look_at_gradient(self, dy: Any, with_structure: bool) -> Look:
        return look(dy, self._channels[1], self._places, self._geometry.groups, with_structure)

    def _met(self, counts: Any) -> Any:
        """Counts of the small side, each multiplied by the number of places of the large side that it meets."""
        return (counts.sum((0, 1)) * self._meetings.to(counts.device)).sum()

    def _reached(self, counts: Any, features: int) -> Any:
        """For each place of the small side the sum of the counts of the large side that it meets."""
        return self._geometry.reached(counts, features, self._small)

    def products(self, x: Look, dy: Look, with_forward: bool) -> Values:
        of_x, of_dy = x.counts.whole(), dy.counts.whole()
        small_x = of_x if self._transposed else self._reached(of_x, self._per_group[0])
        small_dy = self._reached(of_dy, self._per_group[1]) if self._transposed else of_dy
        small_x, small_dy = small_x.double(), small_dy.double()
        values = self._forward(x, of_x, small_x) if with_forward else {}
        gradients = of_dy.sum() if self._transposed else small_dy.sum()
        values.update(gradients=dy.values, gradient_zeros=Term(gradients, -1, dy.values))
        both = Term(torch.dot(small_x.reshape(-1), small_dy.reshape(-1)))
        if self._needs.data:
            values["data_macs"], values["data_needed"] = self._macs, both
            if not self._needs.mask_known:
                alone = small_dy.sum() if self._transposed else self._met(small_dy)
                values["data_needed"] = Term(alone, self._per_group[0])
        if self._needs.weight:
            values.update(weight_macs=self._macs, weight_needed=both)
        if x.structure is not None and dy.structure is not None:
            columns = dy.structure.column_filled
            pairs = (columns.sum(1) * x.structure.column_filled.sum(1)).sum()
            weight = self._macs * pairs.double() / (self._geometry.groups * math.prod(self._per_group))
            data = weight if self._needs.mask_known else self._macs * columns.double().mean()
            _add_structured(values, self._macs, self._needs, data, weight)
        return values

    def _forward(self, x: Look, of_x: Any, small_x: Any) -> Values:
        values = _inputs(x, of_x.sum())
        needed = self._met(small_x) if self._transposed else small_x.sum()
        values.update(forward_macs=self._macs, forward_needed=Term(needed, self._per_group[1]))
        values["padded_macs"] = self._padded
        if x.structure is not None:
            values["forward_structured"] = Term(self._macs * x.structure.column_filled.double().mean())
            values["structured_macs"] = self._macs
        return values


class RecurrentCall:
    """An LSTM or GRU. Only the input of its first layer can be seen; all other factors are taken as dense."""

    def __init__(self, inputs: int, first: int, others: int, needs: Needs) -> None:
        """`first`: multiply-adds for each value of x.

        `others`: multiply-adds of the whole call that do not involve x.
        """
        self._inputs, self._first, self._others, self._needs = inputs, first, others, needs

    def look_at_input(self, x: Any, with_structure: bool) -> Look:
        return look(x, self._inputs, 0, 1, with_structure)

    def look_at_gradient(self, dy: Any, with_structure: bool) -> None:
        return None

    def products(self, x: Look, dy: None, with_forward: bool) -> Values:
        filled, macs = Inner(x.counts), x.values * self._first + self._others
        needed = Term(filled, self._first, self._others)
        values: Values = _inputs(x, filled) | {"forward_macs": macs, "forward_needed": needed} if with_forward else {}
        if self._needs.data:
            values.update(data_macs=macs, data_needed=needed if self._needs.mask_known else macs)
        if self._needs.weight:
            values.update(weight_macs=macs, weight_needed=needed)
        return values
