"""The parameters that one rank of a layout holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layout import Layout


class RankParameters(NamedTuple):
    """Parameters of one rank before data ranks divide them: outside of experts, and of experts."""

    dense: float
    expert: float

    @property
    def all(self) -> float:
        """Both."""
        return self.dense + self.expert

    def divided(self, layout: Layout, gpus: int) -> float:
        """Both, as one rank keeps them of what the data ranks divide."""
        return self.dense / layout.shard_ranks(gpus) + self.expert / layout.expert_shard_ranks(gpus)


def layer_share(model: Transformer, layout: Layout, experts: bool) -> RankParameters:
    """The parameters of a rank in one layer with experts, or without: an expert is whole on its rank."""
    held = model.experts * model.expert_parameters if experts else 0
    return RankParameters(model.dense_parameters(experts) / layout.tensor, held / layout.expert)


def stage_parameters(model: Transformer, layout: Layout, stages: Sequence[int]) -> list[RankParameters]:
    """The parameters of a rank of each stage; `stages` are their layers."""
    found, first = [], 0
    plain, mixed = layer_share(model, layout, False), layer_share(model, layout, True)
    for index, layers in enumerate(stages):
        experts = model.with_experts(first, layers)
        dense = (layers - experts) * plain.dense + experts * mixed.dense
        ends = (index == 0) + (index == len(stages) - 1 and not (model.tied and len(stages) == 1))
        dense += ends * model.embedding_parameters / layout.tensor
        found.append(RankParameters(dense, experts * mixed.expert))
        first += layers
    return found


def rank_parameters(model: Transformer, layout: Layout, stages: Sequence[int]) -> RankParameters:
    """Those of the stage that holds most."""
    return max(stage_parameters(model, layout, stages), key=lambda held: held.all)
