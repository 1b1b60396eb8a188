"""The pipeline of a job in a report: its schedule, its stages, and the bubble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlprof.analysis.rules.facts import stages_of
from ddlprof.base.units import Scale, count, percent

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt


@dataclass(frozen=True)
class PipelineLine:
    """The pipelines of a job, which are alike."""

    schedule: str | None
    """The name of the schedule, such as `1F1B`; None: only the messages show that there is a pipeline."""
    pipelines: int
    """The number of pipelines that train beside each other on different data."""
    ranks: int
    """The ranks of one of them."""
    stages: int
    virtual: int
    """The most stages on one rank."""
    micro_batches: int
    schedule_bubble_share: float | None
    """The bubble by the schedule alone, with stages that all take the mean, as a share of a step without other waits.
    None: the schedule is not known."""
    stage_s: list[float] | None
    """For each rank of a pipeline, the forward and backward of a micro-batch through its stages; None: not measured."""


def pipeline_line(attempt: Attempt) -> PipelineLine | None:
    """The line about the pipelines of an attempt; None without one."""
    if not attempt.pipelines:
        return None
    first, stages = attempt.pipelines[0], stages_of(attempt)
    return PipelineLine(
        schedule=first.schedule.removeprefix("Schedule") or None,
        pipelines=len(attempt.pipelines),
        ranks=len(first.ranks),
        stages=first.stages,
        virtual=first.virtual,
        micro_batches=first.micro_batches,
        schedule_bubble_share=stages.bubble_share if stages else None,
        stage_s=list(stages.seconds) if stages else None,
    )


def pipeline_text(line: PipelineLine, bubble_s: float | None, scale: Scale) -> str:
    """The card's line."""
    text = f"{line.schedule}, " if line.schedule else ""
    text += count(line.stages, "stage")
    text += f" on {count(line.ranks, 'rank')}" if line.virtual > 1 else ""
    text += f", {count(line.micro_batches, 'micro-batch', 'micro-batches')}"
    text += f", {line.pipelines} pipelines side by side" if line.pipelines > 1 else ""
    if line.schedule_bubble_share is None:
        return f"{text}; the schedule is not known, so the bubble is not told from other waiting"
    measured = f" {scale.time(bubble_s)} a step;" if bubble_s is not None else ""
    return f"{text}; bubble{measured} by the schedule {percent(line.schedule_bubble_share)} of a step with equal stages"
