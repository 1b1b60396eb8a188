"""The question of `ddlprof recommend`: how much work, within what limits, on which machines and with which settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddlprof.instance_catalog.own_prices import OwnPrices
    from ddlprof.recommender import Settings


@dataclass(frozen=True)
class PlanQuestion:
    """What is asked of a job, in the words of `ddlprof.recommender.recommend`. None: not asked."""

    samples: float
    budget_s: float
    max_cost_usd: float | None
    settings: Settings
    region: str | None
    cloud: str | None
    instance_types: Sequence[str] | None
    nodes: int | None
    """Exactly so many machines of the types."""
    max_nodes: int | None
    pricing: Sequence[str]
    prices: OwnPrices | None
    interruptions: Mapping[str, float]
    keep_global_batch: bool
    batches_per_gpu: tuple[int, ...]
    """Those to try; empty: that of the job."""
    global_batch: int | None
    """With layouts: the sequences of an update."""
    gpus: tuple[int, ...] | None
    """With layouts: the numbers of GPUs to try."""
