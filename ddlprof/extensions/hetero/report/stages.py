"""The stages of a plan, for people and for programs: layers, devices, memory, links, and the file that is applied."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from ddlprof.base.units import count, gib, percent, scale_for, significant
from ddlprof.extensions.hetero.plan_file import PLAN_SCHEMA
from ddlprof.extensions.hetero.stages.problem import Stage, StagedProblem
from ddlprof.extensions.hetero.stages.schedule import LinkUse
from ddlprof.extensions.hetero.stages.search import PlannedStages, StagedPlan
from ddlprof.report.json_csv import json_text
from ddlprof.report.table import Column, Table
from ddlprof.report.text import labelled

_labelled = partial(labelled, width=80, indent=10)


class _Rank(NamedTuple):
    """One device of a stage."""

    number: int
    stage: int
    device: int
    samples: int


def _ranks(planned: PlannedStages) -> list[_Rank]:
    """The used devices in the order of ranks."""
    found: list[_Rank] = []
    for number, stage in enumerate(planned.strategy.stages):
        for device, samples in zip(stage.devices, stage.samples, strict=True):
            found.append(_Rank(len(found), number, device, samples))
    return found


def sections(plan: StagedPlan) -> list[str]:
    """The lines of the chosen stages: schedule, devices with their layers and memory, and links."""
    best, problem = plan.best, plan.problem
    samples = problem.batch // best.strategy.micro_batches
    numbers = len(best.strategy.stages), best.strategy.micro_batches
    schedule = (
        f"{count(numbers[0], 'stage')}, {count(numbers[1], 'micro-batch', 'micro-batches')} of"
        f" {count(samples, 'sample')}, 1F1B"
    )
    bubble = f"GPUs wait {percent(best.step.bubble)} of the step for other stages"
    tried = "every plan with stages was tried or is ruled out by a bound" if best.exact else "the best of those tried"
    return [
        *_labelled("Schedule", schedule), *_labelled("Bubble", bubble), *_labelled("Search", tried), "",
        *_devices(problem, best).lines(_ranks(best)), *_unused(problem, best), "",
        *_links(problem, best).lines(best.step.links), "",
    ]  # fmt: skip


def _layers(problem: StagedProblem, stage: Stage) -> str:
    first, last = problem.layers[stage.first], problem.layers[stage.end - 1]
    return first.name if first is last else f"{first.name} to {last.name}"


def _devices(problem: StagedProblem, planned: PlannedStages) -> Table[_Rank]:
    step, stages = planned.step, planned.strategy.stages

    def memory(rank: _Rank) -> str:
        limit = problem.limits[rank.device]
        of = "" if limit is None else f" of {gib(limit)}"
        return f"{gib(step.memory_bytes[rank.device])}{of}"

    return Table(
        Column("device", lambda rank: problem.devices.all[rank.device].name, words=True),
        Column("rank", lambda rank: rank.number),
        Column("stage", lambda rank: rank.stage + 1),
        Column("layers", lambda rank: _layers(problem, stages[rank.stage]), words=True),
        Column("samples", lambda rank: rank.samples),
        Column("idle", lambda rank: percent(1 - step.busy_s[rank.device] / step.step_s)),
        Column("memory", memory),
    )


def _unused(problem: StagedProblem, planned: PlannedStages) -> list[str]:
    used = planned.strategy.used
    names = [device.name for device in problem.devices.all if device.index not in used]
    return [f"not used: {', '.join(names)}"] if names else []


def _links(problem: StagedProblem, planned: PlannedStages) -> Table[LinkUse]:
    scale = scale_for(planned.step.step_s)
    return Table(
        Column("link", lambda link: " - ".join(problem.devices.all[each].name for each in link.devices), words=True),
        Column("carries", "name", words=True),
        Column("in a step", lambda link: f"{significant(link.bytes / 1e6, 4)} MB"),
        Column("busy", lambda link: scale.time(link.seconds)),
        Column("speed", lambda link: f"{significant(link.gb_s)} GB/s"),
    )


def values(problem: StagedProblem, planned: PlannedStages) -> dict[str, Any]:
    """The plan for programs; seconds and bytes."""
    step, strategy = planned.step, planned.strategy
    return {
        "micro_batches": strategy.micro_batches,
        "exact": planned.exact,
        "step_s": step.step_s,
        "samples_per_s": problem.batch / step.step_s,
        "bubble": step.bubble,
        "stages": [
            {
                "begins": problem.layers[stage.first].name,
                "layers": sum(layer.layers for layer in problem.layers[stage.first : stage.end]),
                "gradient_bytes": problem.weights[stage.end] - problem.weights[stage.first],
                "devices": [
                    {
                        "device": problem.devices.all[device].name,
                        "samples": samples,
                        "busy_s": step.busy_s[device],
                        "memory_bytes": step.memory_bytes[device],
                        "memory_limit_bytes": problem.limits[device],
                    }
                    for device, samples in zip(stage.devices, stage.samples, strict=True)
                ],
            }
            for stage in strategy.stages
        ],
        "links": [
            link._asdict() | {"devices": [problem.devices.all[each].name for each in link.devices]}
            for link in step.links
        ],
    }


def as_plan(job: str, plan: StagedPlan) -> str:
    """The part of the plan that a training needs: the stages, their ranks, and the samples of each."""
    problem, best = plan.problem, plan.best
    ranks = _ranks(best)
    return json_text(
        {
            "schema": PLAN_SCHEMA,
            "job": job,
            "step_s": best.step.step_s,
            "micro_batches": best.strategy.micro_batches,
            "ranks": problem.devices.shares((rank.device, rank.samples) for rank in ranks),
            "stages": [
                {
                    "begins": problem.layers[stage.first].name if number else "",
                    "ranks": [rank.number for rank in ranks if rank.stage == number],
                }
                for number, stage in enumerate(best.strategy.stages)
            ],
        }
    )
