"""Which places of the two sides of a convolution meet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_BYTE, _SHORT = 2**8 - 1, 2**15 - 1


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

    def reached(self, filled: Any, features: int, small: tuple[int, ...]) -> Any:
        """By (sample, group, place of the small side): the sum of what it meets.

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
        """One dimension of the kernel after the other: a kernel of 3 x 3 takes four sums of two tensors."""
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
        """By place of the small side: places of the large side that it meets, padding with zeros left out."""
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
