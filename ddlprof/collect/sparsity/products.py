"""The multiply-adds of one call of a layer that zeros make unnecessary, counted, not estimated.

Which of them these are is in Sarma et al. 2021 (arXiv 2109.07710), for y = W x: the forward product skips zeros of x;
the weight gradient skips zeros of x and of dy; the data gradient skips zeros of dy and, where x came out of a ReLU, the
gradient of each zero of x. With the shares s_x and s_dy of zeros that is 1 - s_x, (1 - s_x)(1 - s_dy) and the same of
the multiply-adds, if zeros of x and dy are independent. Here the pairs that meet are counted instead: of each sample
(and each place, for a convolution) the nonzeros of x times those of dy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ddlprof.collect.sparsity.zeros import Zeros, inner, look, reach

Values = dict[str, Any]
"""Fields of `LayerCounts` and what to add to them: numbers, or tensors of one number each."""


@dataclass(frozen=True)
class Needs:
    """What backward will compute for the layer, and whether zeros of the input are zeros of its gradient."""

    data: bool
    weight: bool
    mask_known: bool


class Call(Protocol):
    """One call of a layer."""

    forward: Values
    sees_gradient: bool
    """Whether the gradient of what the layer returns says something about its products."""

    def backward(self, gradient: Any) -> Values:
        """`gradient`: of what the layer returned."""


def _seen(zeros: Zeros) -> Values:
    values = {
        "inputs": zeros.values,
        "input_zeros": zeros.values - zeros.nonzeros(),
        "columns": zeros.column_filled.numel(),
        "zero_columns": zeros.column_filled.numel() - zeros.column_filled.sum(dtype=torch.float64),
    }
    if zeros.fitting_fours is not None:
        values.update(fours=zeros.fours, fitting_fours=zeros.fitting_fours)
    return values


class LinearCall:
    """y = x W^T, of `outputs` features."""

    sees_gradient = True

    def __init__(self, x: Any, outputs: int, needs: Needs, fours: bool) -> None:
        self._x = look(x.reshape(-1, x.shape[-1]), fours=fours)
        self._needs, self._outputs, self._inputs = needs, outputs, x.shape[-1]
        self._rows = self._x.filled[:, 0] != 0
        self._macs = x.numel() * outputs
        self._columns = self._x.column_filled.sum(dtype=torch.float64)
        kept = self._rows.sum()
        self.forward = _seen(self._x) | {
            "forward_macs": self._macs,
            "forward_needed": self._x.nonzeros() * outputs,
            "forward_structured": kept * self._columns * outputs,
            "rows": self._rows.numel(),
            "zero_rows": self._rows.numel() - kept,
        }

    def backward(self, gradient: Any) -> Values:
        dy = look(gradient.reshape(-1, self._outputs))
        both, known = inner(self._x.filled, dy.filled), self._needs.mask_known
        rows = dy.filled[:, 0] != 0
        together, columns = (self._rows & rows).sum(), dy.column_filled.sum(dtype=torch.float64)
        values = {"gradients": dy.values, "gradient_zeros": dy.values - dy.nonzeros()}
        if self._needs.data:
            width = self._columns if known else self._inputs
            values["data_macs"] = self._macs
            values["data_needed"] = both if known else dy.nonzeros() * self._inputs
            values["data_structured"] = (together if known else rows.sum()) * columns * width
        if self._needs.weight:
            values["weight_macs"] = self._macs
            values["weight_needed"] = both
            values["weight_structured"] = together * columns * self._columns
        return values


@dataclass(frozen=True)
class Geometry:
    """Of a convolution: place i of the small side meets i * stride - padding + k * dilation of the large side."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """Before and after, by dimension; of the large side."""
    padding_mode: str
    groups: int

    def padded(self, filled: Any) -> Any:
        """Counts of the large side with those of its padding."""
        if not any(map(any, self.padding)):
            return filled
        widths = [width for pair in reversed(self.padding) for width in pair]
        mode = {"zeros": "constant"}.get(self.padding_mode, self.padding_mode)
        return torch.nn.functional.pad(filled, widths, mode=mode)

    def meetings(self, small: tuple[int, ...], large: tuple[int, ...]) -> Any:
        """By place of the small side: places of the large side that it meets, padding with zeros left out."""
        found = torch.ones((), dtype=torch.float64)
        for number, size in enumerate(small):
            low, high = 0, large[number]
            if self.padding_mode != "zeros":
                low, high = -self.padding[number][0], large[number] + self.padding[number][1]
            along = list(self._along(number, size, low, high))
            found = found.unsqueeze(-1) * torch.tensor(along, dtype=torch.float64)
        return found

    def _along(self, number: int, size: int, low: int, high: int) -> Iterator[int]:
        stride, dilation, before = self.stride[number], self.dilation[number], self.padding[number][0]
        for place in range(size):
            begin = place * stride - before
            yield sum(low <= begin + tap * dilation < high for tap in range(self.kernel[number]))


class ConvolutionCall:
    """A convolution, or with `transposed` its transpose, where the output is the large side."""

    sees_gradient = True

    def __init__(
        self, x: Any, y: Any, geometry: Geometry, channels: tuple[int, int], transposed: bool, needs: Needs, fours: bool
    ) -> None:
        """`channels`: of input and output."""
        places = len(geometry.kernel)
        x, self._shape = x.reshape(-1, *x.shape[-places - 1 :]), (-1, *y.shape[-places - 1 :])
        self._x = look(x, geometry.groups, fours)
        self._geometry, self._needs, self._transposed = geometry, needs, transposed
        self._per_group = channels[0] // geometry.groups, channels[1] // geometry.groups
        small, large = tuple(x.shape[2:]), tuple(y.shape[-places:])
        if not transposed:
            small, large = large, small
        self._small = small
        meetings = geometry.meetings(small, large)
        self._meetings = meetings.to(x.device)
        pairs = len(x) * channels[0] * self._per_group[1]
        self._pairs = geometry.groups * math.prod(self._per_group)
        self._macs = round(pairs * float(meetings.sum()))
        self._met = None if transposed else self._reached(self._x.filled)
        needed = self._meet(self._x.filled) if self._met is None else self._met.sum(dtype=torch.float64)
        self.forward = _seen(self._x) | {
            "forward_macs": self._macs,
            "forward_needed": needed * self._per_group[1],
            "forward_structured": self._macs * self._x.column_filled.mean(dtype=torch.float64),
            "padded_macs": pairs * math.prod(geometry.kernel) * math.prod(small) - self._macs,
        }

    def _reached(self, filled: Any) -> Any:
        """By place of the small side: the nonzeros of the large side that it meets."""
        geometry = self._geometry
        found = reach(geometry.padded(filled), geometry.kernel, geometry.stride, geometry.dilation)
        inside = (..., *(slice(size) for size in self._small))  # a transpose may have output_padding
        return found[inside]

    def _meet(self, filled: Any) -> Any:
        """Nonzeros of the small side, each as often as it meets a place of the large side."""
        return (filled.sum((0, 1), dtype=torch.float64) * self._meetings).sum()

    def backward(self, gradient: Any) -> Values:
        dy = look(gradient.reshape(self._shape), self._geometry.groups)
        if self._met is None:
            reached = self._reached(dy.filled)
            both, alone = inner(self._x.filled, reached), reached.sum(dtype=torch.float64)
        else:
            both, alone = inner(self._met, dy.filled), self._meet(dy.filled)
        columns, known = dy.column_filled.sum(1, dtype=torch.float64), self._needs.mask_known
        columns_x = self._x.column_filled.sum(1, dtype=torch.float64)
        together = self._macs * (columns * columns_x).sum() / self._pairs
        values = {"gradients": dy.values, "gradient_zeros": dy.values - dy.nonzeros()}
        if self._needs.data:
            values["data_macs"] = self._macs
            values["data_needed"] = both if known else alone * self._per_group[0]
            values["data_structured"] = together if known else self._macs * dy.column_filled.mean(dtype=torch.float64)
        if self._needs.weight:
            values.update(weight_macs=self._macs, weight_needed=both, weight_structured=together)
        return values


class RecurrentCall:
    """An LSTM or GRU: only the input of its first layer can be seen; every other factor is taken for dense."""

    sees_gradient = False

    def __init__(self, x: Any, first: int, others: int, needs: Needs, fours: bool) -> None:
        """`first`: multiply-adds for each value of x; `others`: those that do not involve x, of the whole call."""
        self._x = look(x.reshape(-1, x.shape[-1]), fours=fours)
        self._needs = needs
        self._macs = x.numel() * first + others
        self._needed = self._x.nonzeros() * first + others
        rows = self._x.filled[:, 0] != 0
        columns = self._x.column_filled.sum(dtype=torch.float64)
        self._structured = columns * rows.numel() * first + others
        self.forward = _seen(self._x) | {
            "forward_macs": self._macs,
            "forward_needed": self._needed,
            "forward_structured": self._structured,
            "rows": rows.numel(),
            "zero_rows": rows.numel() - rows.sum(),
        }

    def backward(self, gradient: Any) -> Values:
        values: Values = {}
        known = self._needs.mask_known
        if self._needs.data:
            values["data_macs"] = self._macs
            values["data_needed"] = self._needed if known else self._macs
            values["data_structured"] = self._structured if known else self._macs
        if self._needs.weight:
            values.update(weight_macs=self._macs, weight_needed=self._needed, weight_structured=self._structured)
        return values
