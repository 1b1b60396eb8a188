"""The parameters that one rank of a layout holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from recommender.architecture import Transformer
from recommender.layout import Layout


class RankParameters(NamedTuple):
    """Parameters of one rank before data ranks divide them: outside of experts, and of experts."""

    dense: float
    expert: float

    @property
    def all(self) -> float:
        """Both."""
        return self.dense + self.expert


def stage_parameters(model: Transformer, layout: Layout, stages: Sequence[int]) -> list[RankParameters]:
    """The parameters of a rank of each stage; `stages` are their layers."""
    found, first = [], 0
    plain, mixed = model.dense_parameters(False), model.dense_parameters(True)
    for index, layers in enumerate(stages):
        experts = model.with_experts(first, layers)
        dense = float((layers - experts) * plain + experts * mixed)
        ends = (index == 0) + (index == len(stages) - 1 and not (model.tied and len(stages) == 1))
        dense += ends * model.embedding_parameters
        held = experts * model.experts * model.expert_parameters
        found.append(RankParameters(dense / layout.tensor, held / layout.expert))
        first += layers
    return found


def rank_parameters(model: Transformer, layout: Layout, stages: Sequence[int]) -> RankParameters:
    """Those of the stage that holds most."""
    return max(stage_parameters(model, layout, stages), key=lambda held: held.all)
