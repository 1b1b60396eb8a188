"""The plan of `ddlprof plan` beside the four that need no search, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, percent, scale_for, significant
from ddlprof.extensions.hetero.check.run import TOLERANCE, CheckedSplit, CheckResult
from ddlprof.extensions.hetero.devices import Device
from ddlprof.extensions.hetero.problem import Problem, SplitStrategy
from ddlprof.extensions.hetero.search import Planned, SplitPlan
from ddlprof.extensions.hetero.simulation import SimulatedStep
from ddlprof.report.table import Column, Table
from ddlprof.report.text import labelled

_labelled = partial(labelled, width=80, indent=10)
_OWN = 0.95
"""Processes of a check that had their cores for a smaller share of the time shared them with other work."""
_MOST_GROUPS = 24
"""The most rows of groups in the table; the JSON file has all groups."""


def render(job: str, plan: SplitPlan, notes: Sequence[str], interval: tuple[float, float] | None) -> str:
    """The text with the plan, its devices and groups, the other plans, and their basis, ending with a line end.

    `interval` is the step in seconds at both ends of the computation's 80 % interval; None: it has none.
    """
    problem, step = plan.problem, plan.best.step
    assert step is not None
    scale = scale_for(step.step_s)
    layers = sum(group.layers for group in problem.groups)
    machines = count(len(problem.devices.machines), "machine")
    lines = [
        f"ddlprof  plan {job} · {count(problem.batch, 'sample')} on up to {count(len(problem.devices), 'GPU')} of"
        f" {machines} · {count(layers, 'layer')} in {count(len(problem.groups), 'group')}",
        *_comparison(plan, scale).lines((plan.best, *plan.uniform)),
        "",
        *_labelled("Gain", _gain(plan)),
    ]
    if interval is not None:
        low_s, high_s = interval
        text = f"{scale.number(low_s)} to {scale.time(high_s)} by the 80 % interval of computation; links as given"
        lines += _labelled("Step", text)
    lines += ["", *_devices(problem, plan.best.strategy, step).lines(problem.devices.all), ""]
    lines += [*_groups(problem, plan.best.strategy), ""]
    lines += _labelled("Rests on", *notes)
    return text_of(lines)


def render_check(check: CheckResult) -> str:
    """The predicted and the measured step of the splits that were tried on this machine."""
    scale = scale_for(max(each.measured_s for each in check.splits))
    splits = Table[CheckedSplit](
        Column("on this machine", "name", words=True),
        Column("samples", lambda split: " + ".join(map(str, split.strategy.samples)), words=True),
        Column("predicted", lambda split: scale.time(split.predicted_s)),
        Column("measured", lambda split: scale.time(split.measured_s)),
        Column("predicted / measured", lambda split: f"{split.ratio:.2f}"),
    )
    text = (
        f"two processes, the second computes everything {check.slow} times; a net with the groups' shares of gradients"
        f" and computation, {count(check.rounds, 'step')} of each split in turn; medians. By speed is {check.gain:.2f}"
        " times as fast as even."
    )
    lines = ["", *splits.lines(check.splits), "", *_labelled("Check", text, *_judged(check))]
    return text_of(lines)


def _judged(check: CheckResult) -> list[str]:
    found = [
        f"{'holds' if check.holds else 'does not hold'}: predictions are off by {percent(check.worst)} at most"
        f" ({percent(TOLERANCE)} are allowed)"
    ]
    if check.processor_share < _OWN:
        found.append(
            f"other work kept the processor busy: computing had it for {percent(check.processor_share)} of the time, so"
            " the figures are further off"
        )
    return found


def bound_by(problem: Problem, step: SimulatedStep) -> str:
    """The largest part of the step: the exchange of gradients, or the computation of one device."""
    if step.exposed_s > step.compute_s:
        return "communication"
    return f"computation on {problem.devices.all[step.slowest].name}"


def _comparison(plan: SplitPlan, scale: Scale) -> Table[Planned]:
    def of_step(head: str, words: Callable[[SimulatedStep], str]) -> Column[Planned]:
        return Column(head, lambda planned: "" if planned.step is None else words(planned.step))

    def bound(planned: Planned) -> str:
        return "does not fit in memory" if planned.step is None else bound_by(plan.problem, planned.step)

    return Table(
        Column("", "name", words=True),
        of_step("step", lambda step: scale.time(step.step_s)),
        of_step("samples/s", lambda step: significant(plan.problem.batch / step.step_s, 4)),
        of_step("computes", lambda step: scale.time(step.compute_s)),
        of_step("exposed", lambda step: scale.time(step.exposed_s)),
        Column("GPUs", lambda planned: len(planned.strategy.used)),
        Column("bound by", bound, words=True),
    )


def _gain(plan: SplitPlan) -> str:
    if plan.gain is None:
        return "none of the four fits in memory, the plan does"
    _, name = min((each.step.step_s, each.name) for each in plan.uniform if each.step is not None)
    if plan.gain < 1.005:
        return f"none: no better plan was found than {name!r}"
    return f"{plan.gain:.2f} times as fast as the best of the four, {name!r}"


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
