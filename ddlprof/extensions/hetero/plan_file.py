"""The file of a plan as a training reads it; `ddlprof plan -o` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import NOT_NEGATIVE, Interval, Length, decode, parse_json, read_text

PLAN_SCHEMA = 2
SCHEMA_OF_SPLITS = 1
"""Plans that divide the batch alone have what they always had."""
_MAX_BYTES = 4 << 20
_Rank = Annotated[int, Interval(0, 100_000)]


@dataclass(frozen=True)
class RankShare:
    device: str
    machine: str
    samples: Annotated[int, Interval(1, 10**9)]
    """The number of samples of every full batch; in a plan with stages, of every micro-batch."""


@dataclass(frozen=True)
class GroupExchange:
    """Consecutive layers whose gradients are exchanged in the same way."""

    layers: str
    gradient_bytes: Annotated[float, NOT_NEGATIVE]
    server_rank: _Rank | None = None
    """The rank of the parameter server; None: all-reduce."""


@dataclass(frozen=True)
class PlannedStage:
    """Consecutive layers on one rank, or on several that divide each micro-batch."""

    begins: Annotated[str, Length(0, 1000)]
    """The module before which the model is divided; empty for the first stage."""
    ranks: Annotated[tuple[_Rank, ...], Length(1, 100_000)]
    """The leader, then its replicas."""


@dataclass(frozen=True)
class PlanFile:
    """The content of the file. Ranks are in the order of their numbers, groups in forward order."""

    schema: int
    ranks: Annotated[tuple[RankShare, ...], Length(1, 100_000)]
    groups: tuple[GroupExchange, ...] = ()
    job: str = ""
    step_s: float | None = None
    stages: tuple[PlannedStage, ...] = ()
    """In forward order; empty: the batch alone is divided."""
    micro_batches: Annotated[int, Interval(1, 10**6)] = 1
    """Of each step of a plan with stages."""

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples of each rank in a full batch."""
        return tuple(rank.samples for rank in self.ranks)

    def own_rank(self) -> int:
        """The rank of this process. Raises `UserError` if the plan is for another number of ranks."""
        import torch.distributed as dist

        initialised = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if initialised else (0, 1)
        if world != len(self.ranks):
            placing = ", ".join(f"{number} on {each.device}" for number, each in enumerate(self.ranks))
            raise UserError(f"the plan is for {len(self.ranks)} ranks ({placing}), and this job has {world}")
        return rank


def read_plan(path: str | Path) -> PlanFile:
    """Reads a plan. Raises `UserError`, one line that names the file, if it is no plan."""
    with naming(path, "; make a plan with: ddlprof plan RUN --machines FILE -o NAME.plan.json"):
        plan = decode(PlanFile, parse_json(read_text(path, _MAX_BYTES)))
    if plan.schema > PLAN_SCHEMA:
        raise UserError(f"{path}: written by a newer ddlprof (schema {plan.schema}); upgrade ddlprof")
    for group in plan.groups:
        if group.server_rank is not None and group.server_rank >= len(plan.ranks):
            raise UserError(f"{path}: server_rank {group.server_rank}: the plan has {len(plan.ranks)} ranks")
    if plan.stages:
        _require_stages(path, plan)
    return plan


def _require_stages(path: str | Path, plan: PlanFile) -> None:
    """Raises `UserError` unless each rank is in one stage, in order, and micro-batches of all stages are equal."""
    if [rank for stage in plan.stages for rank in stage.ranks] != list(range(len(plan.ranks))):
        raise UserError(f"{path}: stages: each rank is expected once, in order")
    if len({sum(plan.ranks[rank].samples for rank in stage.ranks) for stage in plan.stages}) > 1:
        raise UserError(f"{path}: stages: their micro-batches have different numbers of samples")
    if plan.micro_batches < len(plan.stages):
        raise UserError(f"{path}: micro_batches: the schedule needs as many as there are stages, {len(plan.stages)}")
    if any(bool(stage.begins) != bool(number) for number, stage in enumerate(plan.stages)):
        raise UserError(f"{path}: stages: each but the first one begins with a module")
