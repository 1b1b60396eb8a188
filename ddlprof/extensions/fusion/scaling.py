"""Loss scaling of models that train as one: a scale for each, as `torch.amp.GradScaler` has one for a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class ScalerState(NamedTuple):
    """The scale of one model, and its steps since the last overflow."""

    scale: float
    good: int


class Scaler:
    """A scale for each of `models` models. An overflow of one halves its scale and leaves out its update alone.

    The scales are those that a `torch.amp.GradScaler` with the same arguments would have for each model by itself.
    """

    def __init__(
        self,
        models: int,
        device: torch.device | str = "cpu",
        *,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        """`growth_interval`: steps without overflow after which the scale of a model grows."""
        self.scales = torch.full((models,), init_scale, device=device)
        self._good = torch.zeros(models, dtype=torch.int64, device=device)
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval

    def state_of(self, model: int) -> ScalerState:
        """What it knows of one of the models."""
        return ScalerState(float(self.scales[model]), int(self._good[model]))

    def load(self, states: Sequence[ScalerState]) -> None:
        """Goes on from the state of each model."""
        self.scales = torch.tensor([each.scale for each in states], device=self.scales.device)
        self._good = torch.tensor([each.good for each in states], device=self.scales.device)

    def scale(self, losses: Tensor) -> Tensor:
        """The losses, one for each model, times its scale."""
        return losses * self.scales

    def unscaled(self, gradients: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The gradients, of shape (B, ...), without scale, and which models have only finite ones."""
        factors = self.scales.double().reciprocal().float()
        finite = torch.ones_like(self.scales, dtype=torch.bool)
        found = []
        for gradient in gradients:
            rows = gradient.reshape(len(factors), -1)
            finite &= rows.isfinite().all(1)
            found.append((rows * factors.to(rows.dtype).unsqueeze(1)).view(gradient.shape))
        return found, finite

    def update(self, finite: Tensor) -> None:
        """New scales after a step in which these models had finite gradients."""
        self._good = torch.where(finite, self._good + 1, 0)
        grows = self._good >= self._interval
        grown = self.scales * self._growth
        grown = torch.where(grown.isfinite(), grown, self.scales)  # as torch does
        kept = torch.where(grows, grown, self.scales)
        self._good = torch.where(grows, 0, self._good)
        self.scales = torch.where(finite, kept, self.scales * self._backoff)
