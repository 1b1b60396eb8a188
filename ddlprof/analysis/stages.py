"""How long the stages of a pipeline take, and what it would save if they all took the mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ddlprof.analysis.bubbles import Pipeline
from ddlprof.analysis.schedules import waits

if TYPE_CHECKING:
    from ddlprof.analysis.summary import Summary


@dataclass(frozen=True)
class Stages:
    """The stages of the pipelines of a job, which are alike; means over steady steps."""

    schedule: str
    """The name of the schedule, such as `1F1B`; empty: the pipeline was recognised by its form."""
    pipelines: int
    stages: int
    virtual: int
    """The number of stages on one rank."""
    micro_batches: int
    seconds: tuple[float, ...]
    """For each place in the pipeline, the forward and backward of a micro-batch through all stages of that rank."""
    slowest: int
    """The place that takes longest."""
    ranks: tuple[int, ...]
    """The job's ranks at that place."""
    own: tuple[int, ...]
    """The numbers of the stages there."""
    only: tuple[str, ...]
    """What these stages hold and no other does: names of modules, or `9 of layers (the others 8)`."""
    least_s: float
    """What the fastest rank at that place takes: if it is no slower than others, one rank is slow and not the stage."""
    gain_s: float
    """How much shorter a step would be if all stages took the mean."""
    bubble_share: float | None
    """The bubble as a share of a step by the schedule, with equal stages and without communication."""

    @property
    def others_s(self) -> float:
        """The mean of the other places."""
        return fmean(s for place, s in enumerate(self.seconds) if place != self.slowest)

    @property
    def longer(self) -> float:
        """How much longer the slowest stage takes in every pipeline, as a share of what the others take."""
        return self.least_s / self.others_s - 1 if self.others_s else 0.0


def find_stages(pipelines: Sequence[Pipeline], ranks: Mapping[int, Summary]) -> Stages | None:
    """The stages of the pipelines; None without one, or where its work was not measured."""
    first = next((each for each in pipelines if each.orders is not None and each.own), None)
    if first is None:
        return None
    alike = [p for p in pipelines if (len(p.ranks), p.own, p.orders) == (len(first.ranks), first.own, first.orders)]
    of_place = []
    for place in range(len(first.ranks)):
        worked = [_worked_s(ranks.get(p.ranks[place]), first.micro_batches) for p in alike]
        of_place.append([s for s in worked if s])
    if len(of_place) < 2 or not all(of_place):
        return None
    seconds = tuple(map(fmean, of_place))
    slowest = max(range(len(seconds)), key=lambda place: seconds[place])
    uneven_s, even_s = _step_s(first, seconds), _step_s(first, [fmean(seconds)] * len(seconds))
    work_s = first.micro_batches * fmean(seconds)
    return Stages(
        schedule=first.schedule.removeprefix("Schedule"),
        pipelines=len(alike),
        stages=first.stages,
        virtual=first.virtual,
        micro_batches=first.micro_batches,
        seconds=seconds,
        slowest=slowest,
        ranks=tuple(sorted(p.ranks[slowest] for p in alike)),
        own=first.own[slowest],
        only=_only(first, slowest),
        least_s=min(of_place[slowest]),
        gain_s=max(0.0, uneven_s - even_s) if uneven_s is not None and even_s is not None else 0.0,
        bubble_share=1 - work_s / even_s if even_s else None,
    )


def _worked_s(summary: Summary | None, micro_batches: int) -> float | None:
    if summary is None or not micro_batches:
        return None
    forward, backward = summary.mean_ns("compute_forward"), summary.mean_ns("compute_backward")
    whole = summary.mean_ns("compute") if forward is None or backward is None else forward + backward
    return None if whole is None else whole / 1e9 / micro_batches


def _step_s(pipeline: Pipeline, seconds: Sequence[float]) -> float | None:
    """A step by the schedule, if the stages of each rank share its time of a micro-batch equally.

    A forward counts as a third of that: what the parts are changes the bubble little.
    """
    assert pipeline.orders is not None
    of_stage = [0.0] * pipeline.stages
    for place, own in enumerate(pipeline.own):
        for stage in own:
            if stage < len(of_stage):
                of_stage[stage] = seconds[place] / len(own)
    waited = waits(pipeline.orders, [s / 3 for s in of_stage], [2 * s / 3 for s in of_stage])
    return None if waited is None else waited[0] + pipeline.micro_batches * seconds[0]


def _only(pipeline: Pipeline, place: int) -> tuple[str, ...]:
    """What only the stages at this place hold, or hold more of."""
    held = [_held(parts) for parts in pipeline.parts]
    if len(held) != len(pipeline.ranks):
        return ()
    mine, others = held[place], [each for number, each in enumerate(held) if number != place]
    found = []
    for name, count in mine.items():
        most = max(other[name] for other in others)
        if not most:
            found.append(name)
        elif count > most:
            found.append(f"{count} of {name} (the others {most})")
    return tuple(found)


def _held(parts: Sequence[Sequence[str]]) -> Counter[str]:
    """The modules in the stages of a rank; of a container, how many it holds."""
    held: Counter[str] = Counter()
    for stage in parts:
        for text in stage:
            name, _, count = text.partition("*")
            held[name] += int(count) if count.isdigit() else 1
    return held
