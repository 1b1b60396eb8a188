"""The products of one weight of an LSTM with inputs of which some neurons are dropped.

Both kinds have the same methods, so an LSTM that drops neurons and one that does not run the same code otherwise.
`T` steps, `B` samples, `n` inputs, `G` gates times hidden neurons. The weight is transposed, (n, G): the row of a
neuron lies together in memory.
"""

from __future__ import annotations

from typing import Any

import torch

GATHER_SAMPLES = 50
"""Fetching a row of a weight, or adding to one, takes as long as multiplying it for so many samples."""
SMALL_PRODUCT_SAMPLES = 30
"""A product of one step alone takes as long as one of so many samples more in a product of all steps.

Both were measured on a CPU, at 650 and 1500 neurons and batches of 20 to 128; they only decide what is faster."""
_NEAR_BYTES = 1_500_000
"""Rows are fetched so many bytes at a time on a CPU: they are multiplied while they are still in its cache."""


class Masked:
    """Multiplies with all neurons; a mask may zero other neurons for each sample, so the products have full size.

    Products that do not depend on the step before are computed as one product for all steps.
    """

    def __init__(self, weight: Any, mask: Any = None) -> None:
        """`mask`: (T, 1 or B, n), 0 for dropped inputs and the scaling factor for kept ones; None drops nothing."""
        self._weight, self.mask = weight, mask

    def _masked(self, values: Any, step: int | None = None) -> Any:
        if self.mask is None:
            return values
        return values * (self.mask if step is None else self.mask[step])

    def add(self, gates: Any, values: Any, step: int) -> None:
        """Adds the product of values (B, n) to gates (B, G)."""
        gates.addmm_(self._masked(values, step), self._weight)

    def add_all(self, gates: Any, values: Any) -> None:
        """Does the same for all steps: values (T, B, n), gates (T, B, G)."""
        gates.flatten(0, 1).addmm_(self._masked(values).flatten(0, 1), self._weight)

    def input_gradient(self, gradient: Any, step: int) -> Any:
        """Returns the gradient (B, n) of the inputs of one step from the gradient (B, G) of its gates."""
        return self._masked(gradient @ self._weight.t(), step)

    def input_gradients(self, gradients: Any) -> Any:
        """Returns the gradients (T, B, n) of the inputs of all steps from the gradients (T, B, G) of the gates."""
        return self._masked(gradients @ self._weight.t())

    def weight_gradient(self, values: Any, gradients: Any) -> Any:
        """Returns the gradient (n, G) of the weight, summed over all steps."""
        return self._masked(values).flatten(0, 1).t() @ gradients.flatten(0, 1)


class KeptNeurons(Masked):
    """Drops the same neurons for the whole batch, others in each step, and multiplies with the kept rows only.

    Fetching these rows of the weight costs time, too, which a small batch does not win back: see `GATHER_SAMPLES`.
    """

    def __init__(self, weight: Any, kept: Any, factor: float) -> None:
        """`kept`: (T, k), the indices of the neurons kept in each step; `factor` scales the kept inputs."""
        weight = weight.contiguous()
        mask = weight.new_zeros(len(kept), len(weight)).scatter_(1, kept, factor)
        super().__init__(weight, mask.unsqueeze(1))
        self._kept, self._factor = kept, factor
        self._share: float = kept.shape[1] / len(weight)
        at_once = kept.shape[1]
        if weight.device.type == "cpu":
            at_once = min(at_once, max(1, _NEAR_BYTES // (weight.shape[1] * weight.element_size())))
        self._rows = weight.new_empty(at_once, weight.shape[1])
        self._parts = [slice(first, first + at_once) for first in range(0, kept.shape[1], at_once)]

    def _pays(self, samples: int, alone: bool = False) -> bool:
        """Whether fetching the kept rows saves time. `alone`: the full product would be computed step by step."""
        full = samples + (SMALL_PRODUCT_SAMPLES if alone else 0)
        return self._share * (samples + GATHER_SAMPLES) < full

    def _room(self, kept: Any) -> Any:
        return self._rows[: len(kept)]

    def _rows_of(self, kept: Any) -> Any:
        return torch.index_select(self._weight, 0, kept, out=self._room(kept))

    def _values(self, values: Any, step: int) -> Any:
        return values.index_select(1, self._kept[step]).mul_(self._factor)

    def _add(self, gates: Any, values: Any, step: int) -> None:
        values, kept = self._values(values, step), self._kept[step]
        for part in self._parts:
            gates.addmm_(values[:, part], self._rows_of(kept[part]))

    def _into(self, found: Any, gradient: Any, step: int) -> Any:
        kept = self._kept[step]
        of_kept = gradient.new_empty(len(gradient), len(kept))
        for part in self._parts:
            torch.mm(gradient, self._rows_of(kept[part]).t(), out=of_kept[:, part])
        return found.index_copy_(1, kept, of_kept.mul_(self._factor))

    def add(self, gates: Any, values: Any, step: int) -> None:
        if not self._pays(len(values), alone=True):
            super().add(gates, values, step)
        else:
            self._add(gates, values, step)

    def add_all(self, gates: Any, values: Any) -> None:
        if not self._pays(values.shape[1]):
            super().add_all(gates, values)
            return
        for step in range(len(values)):
            self._add(gates[step], values[step], step)

    def input_gradient(self, gradient: Any, step: int) -> Any:
        if not self._pays(len(gradient), alone=True):
            return super().input_gradient(gradient, step)
        return self._into(gradient.new_zeros(len(gradient), len(self._weight)), gradient, step)

    def input_gradients(self, gradients: Any) -> Any:
        if not self._pays(gradients.shape[1]):
            return super().input_gradients(gradients)
        found = gradients.new_zeros(*gradients.shape[:2], len(self._weight))
        for step in range(len(gradients)):
            self._into(found[step], gradients[step], step)
        return found

    def weight_gradient(self, values: Any, gradients: Any) -> Any:
        """Adds in place, row by row: a gradient of the whole weight for each step would cost more than the product."""
        if not self._pays(values.shape[1]):
            return super().weight_gradient(values, gradients)
        found = torch.zeros_like(self._weight, dtype=accumulating(self._weight))
        for step in range(len(values)):
            of_step, kept = self._values(values[step], step).t(), self._kept[step]
            for part in self._parts:
                rows = torch.mm(of_step[part], gradients[step], out=self._room(kept[part]))
                found.index_add_(0, kept[part], rows.to(found.dtype))
        return found


def accumulating(tensor: Any) -> torch.dtype:
    """The precision in which a sum over many steps is kept."""
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype
