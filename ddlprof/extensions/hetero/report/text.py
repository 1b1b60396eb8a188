"""The plan of `ddlprof plan` beside those that need no search, for people."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, percent, scale_for, significant
from ddlprof.extensions.hetero.devices import Device
from ddlprof.extensions.hetero.problem import Problem, SplitStrategy
from ddlprof.extensions.hetero.report import stages
from ddlprof.extensions.hetero.search import Planned, SplitPlan
from ddlprof.extensions.hetero.simulation import SimulatedStep
from ddlprof.extensions.hetero.stages.search import PlannedStages, StagedPlan
from ddlprof.extensions.hetero.unequal_plan import UnequalPlan
from ddlprof.report.table import Column, Table
from ddlprof.report.text import labelled

_labelled = partial(labelled, width=80, indent=10)
_MOST_GROUPS = 24
"""The most rows of groups in the table; the JSON file has all groups."""


class _Row(NamedTuple):
    """One plan in the table of plans."""

    name: str
    step_s: float | None
    """None: it does not fit into memory."""
    compute_s: float = 0.0
    """The computing time of the device that computes longest."""
    gpus: int = 0
    bound_by: str = "does not fit in memory"


def render(found: UnequalPlan) -> str:
    """The text with the plan, its devices and groups or stages, the other plans, and their basis, ending with a line
    end."""
    problem, scale = found.problem, scale_for(found.step_s)
    layers = sum(group.layers for group in problem.groups)
    machines = count(len(problem.devices.machines), "machine")
    of = "stages" if found.stages else f"{count(len(problem.groups), 'group')}"
    lines = [
        f"ddlprof  plan {found.job} · {count(problem.batch, 'sample')} on up to {count(len(problem.devices), 'GPU')} of"
        f" {machines} · {count(layers, 'layer')} in {of}",
        *_comparison(problem.batch, scale).lines(_rows(found)),
        "",
        *_labelled("Gain", _gain(found)),
    ]
    if found.interval_s is not None:
        low_s, high_s = found.interval_s
        text = f"{scale.number(low_s)} to {scale.time(high_s)} by the 80 % interval of computation; links as given"
        lines += _labelled("Step", text)
    if (staged := found.stages) is not None:
        lines += stages.sections(staged)
    elif found.split is not None:
        best = found.split.best
        assert best.step is not None
        lines += ["", *_devices(problem, best.strategy, best.step).lines(problem.devices.all), ""]
        lines += [*_groups(problem, best.strategy), ""]
    lines += _labelled("Rests on", *found.notes)
    return text_of(lines)


def _rows(found: UnequalPlan) -> list[_Row]:
    """The plan, then the others."""
    split, staged = found.split, found.staged
    rows = [_staged_row(STAGES, staged, staged.best)] if staged else []
    if split is not None:
        rows.append(_split_row(split, split.best)._replace(name=SPLIT))
    rows.sort(key=lambda row: row.step_s or 0.0)
    rows[0] = rows[0]._replace(name=f"plan: {rows[0].name}" if staged else "plan")
    rows += [_split_row(split, each) for each in split.uniform] if split else []
    if staged is not None:
        rows.append(_staged_row(EQUAL, staged, staged.uniform) if staged.uniform else _Row(EQUAL, None))
    return rows


STAGES, SPLIT, EQUAL = "stages", "batch divided", "stages of equal layers"
"""The names of plans that divide the layers, of one that divides the batch, and of one that needs no search."""


def _split_row(plan: SplitPlan, planned: Planned) -> _Row:
    if (step := planned.step) is None:
        return _Row(planned.name, None)
    return _Row(planned.name, step.step_s, step.compute_s, len(planned.strategy.used), bound_by(plan.problem, step))


def _staged_row(name: str, plan: StagedPlan, planned: PlannedStages) -> _Row:
    device, _, compute_s = planned.slowest
    waits = planned.step.step_s > 2 * compute_s
    bound = "waiting for other stages" if waits else f"computation on {plan.problem.devices.all[device].name}"
    return _Row(name, planned.step.step_s, compute_s, len(planned.strategy.used), bound)


def bound_by(problem: Problem, step: SimulatedStep) -> str:
    """The largest part of the step: the exchange of gradients, or the computation of one device."""
    if step.exposed_s > step.compute_s:
        return "communication"
    return f"computation on {problem.devices.all[step.slowest].name}"


def _comparison(batch: int, scale: Scale) -> Table[_Row]:
    def of_step(head: str, words: Callable[[float, float], str]) -> Column[_Row]:
        return Column(head, lambda row: "" if row.step_s is None else words(row.step_s, row.compute_s))

    return Table(
        Column("", "name", words=True),
        of_step("step", lambda step_s, _: scale.time(step_s)),
        of_step("samples/s", lambda step_s, _: significant(batch / step_s, 4)),
        of_step("computes", lambda _, compute_s: scale.time(compute_s)),
        of_step("exposed", lambda step_s, compute_s: scale.time(max(step_s - compute_s, 0.0))),
        Column("GPUs", lambda row: row.gpus or ""),
        Column("bound by", "bound_by", words=True),
    )


def _gain(found: UnequalPlan) -> str:
    simple = [row for row in _rows(found)[1:] if row.step_s is not None and row.name not in (STAGES, SPLIT)]
    if found.gain is None or not simple:
        return "no plan that needs no search fits in memory, the plan does"
    name = min(simple, key=lambda row: row.step_s or 0.0).name
    if found.gain < 1.005:
        return f"none: no better plan was found than {name!r}"
    return f"{found.gain:.2f} times as fast as the best that needs no search, {name!r}"


def _devices(problem: Problem, strategy: SplitStrategy, step: SimulatedStep) -> Table[Device]:
    ranks = {device: str(rank) for rank, device in enumerate(strategy.used)}
    samples = strategy.samples
    return Table(
        Column("device", "name", words=True),
        Column("rank", lambda device: ranks.get(device.index, "not used")),
        Column("samples", lambda device: samples[device.index] or ""),
        Column("idle", lambda each: percent(step.idle_s[each.index] / step.step_s) if samples[each.index] else ""),
    )


def _groups(problem: Problem, strategy: SplitStrategy) -> list[str]:
    """The groups in the order of their layers in the forward pass."""
    groups = problem.groups
    table = Table[int](
        Column("group", lambda number: groups[number].name, words=True),
        Column("layers", lambda number: groups[number].layers),
        Column("gradients", lambda number: f"{significant(groups[number].gradient_bytes / 1e6, 4)} MB"),
        Column("exchanged by", lambda number: exchange_method(problem, strategy, number), words=True),
    )
    more = [[f"{len(groups) - _MOST_GROUPS} more", "", "", ""]] if len(groups) > _MOST_GROUPS else []
    return table.lines(range(min(len(groups), _MOST_GROUPS)), *more)


def exchange_method(problem: Problem, strategy: SplitStrategy, group: int) -> str:
    """How the gradients of a group are exchanged."""
    if len(strategy.used) == 1:
        return "nobody: one GPU"
    server = strategy.servers[group]
    return "all-reduce" if server is None else f"parameter server on {problem.devices.all[server].name}"
