"""The multiply-adds of one call of a layer that zeros make unnecessary, counted, not estimated.

Which of them these are is in Sarma et al. 2021 (arXiv 2109.07710), for y = W x: the forward product skips zeros of x;
the weight gradient skips zeros of x and of dy; the data gradient skips zeros of dy and, where x came out of a ReLU, the
gradient of each zero of x. With the shares s_x and s_dy of zeros that is 1 - s_x, (1 - s_x)(1 - s_dy) and the same of
the multiply-adds, if zeros of x and dy are independent. Here the pairs that meet are counted instead: of each sample
(and each place, for a convolution) the nonzeros of x times those of dy.
"""

from __future__ import annotations

import functools
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
    values = {"inputs": zeros.values, "input_zeros": zeros.values - zeros.nonzeros()}
    if zeros.column_filled is not None:
        count = zeros.column_filled.numel()
        values.update(columns=count, zero_columns=count - zeros.column_filled.sum(dtype=torch.float64))
    if zeros.fitting_fours is not None:
        values.update(fours=zeros.fours, fitting_fours=zeros.fitting_fours)
    return values


def _structured(product: str, macs: int, left: Any) -> Values:
    return {f"{product}_structured": left, "structured_macs": macs}


def _add(values: Values, more: Values) -> None:
    for name, value in more.items():
        values[name] = values.get(name, 0) + value


class LinearCall:
    """y = x W^T, of `outputs` features."""

    sees_gradient = True

    def __init__(self, x: Any, outputs: int, needs: Needs, structure: bool) -> None:
        self._x = look(x.reshape(-1, x.shape[-1]), structure=structure)
        self._needs, self._outputs, self._inputs = needs, outputs, x.shape[-1]
        self._macs, self._structure = x.numel() * outputs, structure
        self.forward = _seen(self._x) | {
            "forward_macs": self._macs,
            "forward_needed": self._x.nonzeros() * outputs,
        }
        if structure:
            self._rows = self._x.filled[:, 0] != 0
            self._columns = self._x.column_filled.sum(dtype=torch.float64)
            kept, count = self._rows.sum(), self._rows.numel()
            self.forward |= {"rows": count, "zero_rows": count - kept}
            self.forward |= _structured("forward", self._macs, kept * self._columns * outputs)

    def backward(self, gradient: Any) -> Values:
        dy = look(gradient.reshape(-1, self._outputs), structure=self._structure)
        both, known = inner(self._x.filled, dy.filled), self._needs.mask_known
        values = {"gradients": dy.values, "gradient_zeros": dy.values - dy.nonzeros()}
        if self._needs.data:
            values["data_macs"] = self._macs
            values["data_needed"] = both if known else dy.nonzeros() * self._inputs
        if self._needs.weight:
            values.update(weight_macs=self._macs, weight_needed=both)
        if self._structure:
            self._add_structure(values, dy)
        return values

    def _add_structure(self, values: Values, dy: Zeros) -> None:
        rows = dy.filled[:, 0] != 0
        together, columns = (self._rows & rows).sum(), dy.column_filled.sum(dtype=torch.float64)
        if self._needs.data:
            kept, width = (together, self._columns) if self._needs.mask_known else (rows.sum(), self._inputs)
            _add(values, _structured("data", self._macs, kept * columns * width))
        if self._needs.weight:
            _add(values, _structured("weight", self._macs, together * columns * self._columns))


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

    @functools.lru_cache(maxsize=1000)  # noqa: B019 (a geometry is a few numbers)
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
        self,
        x: Any,
        y: Any,
        geometry: Geometry,
        channels: tuple[int, int],
        transposed: bool,
        needs: Needs,
        structure: bool,
    ) -> None:
        """`channels`: of input and output."""
        places = len(geometry.kernel)
        x, self._shape = x.reshape(-1, *x.shape[-places - 1 :]), (-1, *y.shape[-places - 1 :])
        self._x = look(x, geometry.groups, structure)
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
            "padded_macs": pairs * math.prod(geometry.kernel) * math.prod(small) - self._macs,
        }
        if structure:
            left = self._macs * self._x.column_filled.mean(dtype=torch.float64)
            self.forward |= _structured("forward", self._macs, left)

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
        structure = self._x.column_filled is not None
        dy = look(gradient.reshape(self._shape), self._geometry.groups, structure)
        if self._met is None:
            reached = self._reached(dy.filled)
            both = inner(self._x.filled, reached)
        else:
            both = inner(self._met, dy.filled)
        values = {"gradients": dy.values, "gradient_zeros": dy.values - dy.nonzeros()}
        known = self._needs.mask_known
        if self._needs.data:
            values["data_macs"], values["data_needed"] = self._macs, both
            if not known:
                alone = self._meet(dy.filled) if self._met is not None else reached.sum(dtype=torch.float64)
                values["data_needed"] = alone * self._per_group[0]
        if self._needs.weight:
            values.update(weight_macs=self._macs, weight_needed=both)
        if structure:
            self._add_structure(values, dy)
        return values

    def _add_structure(self, values: Values, dy: Zeros) -> None:
        pairs = dy.column_filled.sum(1, dtype=torch.float64) * self._x.column_filled.sum(1, dtype=torch.float64)
        together = self._macs * pairs.sum() / self._pairs
        if self._needs.data:
            alone = self._macs * dy.column_filled.mean(dtype=torch.float64)
            _add(values, _structured("data", self._macs, together if self._needs.mask_known else alone))
        if self._needs.weight:
            _add(values, _structured("weight", self._macs, together))


class RecurrentCall:
    """An LSTM or GRU: only the input of its first layer can be seen; every other factor is taken for dense."""

    sees_gradient = False

    def __init__(self, x: Any, first: int, others: int, needs: Needs, structure: bool) -> None:
        """`first`: multiply-adds for each value of x; `others`: those that do not involve x, of the whole call."""
        self._x = look(x.reshape(-1, x.shape[-1]), structure=structure)
        self._needs = needs
        self._macs = x.numel() * first + others
        self._needed = self._x.nonzeros() * first + others
        self.forward = _seen(self._x) | {"forward_macs": self._macs, "forward_needed": self._needed}

    def backward(self, gradient: Any) -> Values:
        values: Values = {}
        if self._needs.data:
            values["data_macs"] = self._macs
            values["data_needed"] = self._needed if self._needs.mask_known else self._macs
        if self._needs.weight:
            values.update(weight_macs=self._macs, weight_needed=self._needed)
        return values
