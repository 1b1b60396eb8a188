"""The place of a rank in a pipeline whose schedule is known, written once for each pipeline that the rank trains in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ddlprof.model.annotations import Shared, SharedAs

FORWARD, BACKWARD, OF_INPUT, OF_WEIGHT = KINDS = ("F", "B", "I", "W")
"""What a stage does with a micro-batch: forward, backward, and the backward's two halves where they are apart: the
gradient of the input, which the stage before waits for, and that of the weights, which nobody does."""

MOST_ORDER_CHARACTERS = 200_000
"""The longest order that is written: some 30,000 actions of a rank in a step."""


class Action(NamedTuple):
    """One piece of work in a schedule."""

    stage: int
    kind: str
    """One of `KINDS`."""
    micro_batch: int


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """What a rank knows of its pipeline. Lists are texts, as a line of a rank's file holds plain values."""

    schedule: Annotated[str, SharedAs("schedule")]
    """The name of the schedule's class, such as `Schedule1F1B`."""
    stages: Shared[int]
    """The number of stages of the whole pipeline."""
    micro_batches: Shared[int]
    own: Annotated[str, SharedAs("list")]
    """The numbers of this rank's stages, with commas between them."""
    ranks: Annotated[str, SharedAs("list")]
    """The job's ranks in the pipeline, with commas between them."""
    order: Annotated[str, SharedAs("list")] = ""
    """This rank's actions in order, as `0F0,0F1,0B0`: stage, kind and micro-batch. Empty: only the schedule tells."""
    parts: str = ""
    """For each of its stages the names of the modules in it, as `embed,layers*8|layers*8,head`."""


def numbers(text: str) -> tuple[int, ...]:
    """The numbers in a text such as `0,4`. Raises ValueError if it has anything else."""
    return tuple(int(each) for each in text.split(",")) if text else ()


def written(actions: list[Action]) -> str:
    """The actions as the text of `PipelineSchedule.order`; empty if they are too many."""
    text = ",".join(f"{each.stage}{each.kind}{each.micro_batch}" for each in actions)
    return text if len(text) <= MOST_ORDER_CHARACTERS else ""


def read_order(text: str) -> tuple[Action, ...]:
    """The actions in a text that `written` made. Raises ValueError if it is no such text."""
    return tuple(_action(each) for each in text.split(",")) if text else ()


def _action(text: str) -> Action:
    kind = next((kind for kind in KINDS if kind in text), None)
    if kind is None:
        raise ValueError(f"not an action of a pipeline: {text[:20]}")
    stage, _, micro_batch = text.partition(kind)
    return Action(int(stage), kind, int(micro_batch))
