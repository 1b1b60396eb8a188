"""The plan of `ddlprof plan` beside the four that need no search, for people."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, percent, scale_for, significant
from ddlprof.extensions.hetero.check.run import TOLERANCE, Check
from ddlprof.extensions.hetero.problem import Problem, Strategy
from ddlprof.extensions.hetero.search import Plan, Planned
from ddlprof.extensions.hetero.simulation import Step
from ddlprof.report.text import aligned, labelled

_labelled = partial(labelled, width=80, indent=10)
_OWN = 0.95
"""Processes of a check that had their cores for a smaller share of the time shared them with other work."""
_MOST_GROUPS = 24
"""The most rows of groups in the table; the JSON file has all groups."""


def render(job: str, plan: Plan, notes: Sequence[str], interval: tuple[float, float] | None) -> str:
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
        *aligned(_comparison(plan, scale), right={1, 2, 3, 4, 5}),
        "",
        *_labelled("Gain", _gain(plan)),
    ]
    if interval is not None:
        low_s, high_s = interval
        text = f"{scale.number(low_s)} to {scale.time(high_s)} by the 80 % interval of computation; links as given"
        lines += _labelled("Step", text)
    lines += ["", *aligned(_devices(problem, plan.best.strategy, step, scale), right={1, 2, 3}), ""]
    lines += aligned(_groups(problem, plan.best.strategy), right={1, 2})
    lines.append("")
    lines += _labelled("Rests on", *notes)
    return text_of(lines)


def render_check(check: Check) -> str:
    """The predicted and the measured step of the splits that were tried on this machine."""
    scale = scale_for(max(each.measured_s for each in check.splits))
    rows = [["on this machine", "samples", "predicted", "measured", "predicted / measured"]]
    for each in check.splits:
        samples = " + ".join(map(str, each.strategy.samples))
        cells = [scale.time(each.predicted_s), scale.time(each.measured_s), f"{each.ratio:.2f}"]
        rows.append([each.name, samples, *cells])
    text = (
        f"two processes, the second computes everything {check.slow} times; a net with the groups' shares of gradients"
        f" and computation, {count(check.rounds, 'step')} of each split in turn; medians. By speed is {check.gain:.2f}"
        " times as fast as even."
    )
    lines = ["", *aligned(rows, right={2, 3, 4}), "", *_labelled("Check", text, *_judged(check))]
    return text_of(lines)


def _judged(check: Check) -> list[str]:
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


def bound_by(problem: Problem, step: Step) -> str:
    """The largest part of the step: the exchange of gradients, or the computation of one device."""
    if step.exposed_s > step.compute_s:
        return "communication"
    return f"computation on {problem.devices.all[step.slowest].name}"


def _comparison(plan: Plan, scale: Scale) -> list[list[str]]:
    rows = [["", "step", "samples/s", "computes", "exposed", "GPUs", "bound by"]]
    for each in (plan.best, *plan.uniform):
        if each.step is None:
            rows.append([each.name, "", "", "", "", str(len(each.strategy.used)), "does not fit in memory"])
        else:
            rows.append([each.name, *_cells(plan.problem, each, each.step, scale)])
    return rows


def _cells(problem: Problem, planned: Planned, step: Step, scale: Scale) -> list[str]:
    return [
        scale.time(step.step_s),
        f"{significant(problem.batch / step.step_s, 4)}",
        scale.time(step.compute_s),
        scale.time(step.exposed_s),
        str(len(planned.strategy.used)),
        bound_by(problem, step),
    ]


def _gain(plan: Plan) -> str:
    if plan.gain is None:
        return "none of the four fits in memory, the plan does"
    _, name = min((each.step.step_s, each.name) for each in plan.uniform if each.step is not None)
    if plan.gain < 1.005:
        return f"none: no better plan was found than {name!r}"
    return f"{plan.gain:.2f} times as fast as the best of the four, {name!r}"


def _devices(problem: Problem, strategy: Strategy, step: Step, scale: Scale) -> list[list[str]]:
    rows = [["device", "rank", "samples", "idle"]]
    ranks = {device: rank for rank, device in enumerate(strategy.used)}
    for device in problem.devices.all:
        samples = strategy.samples[device.index]
        idle = percent(step.idle_s[device.index] / step.step_s) if samples else ""
        rank = ranks.get(device.index)
        rows.append([device.name, "not used" if rank is None else str(rank), str(samples) if samples else "", idle])
    return rows


def _groups(problem: Problem, strategy: Strategy) -> list[list[str]]:
    """The groups in the order of their layers in the forward pass."""
    rows = [["group", "layers", "gradients", "exchanged by"]]
    ways = [way(problem, strategy, group) for group in range(len(problem.groups))]
    for group, how in list(zip(problem.groups, ways, strict=True))[:_MOST_GROUPS]:
        rows.append([group.name, str(group.layers), f"{significant(group.gradient_bytes / 1e6, 4)} MB", how])
    if len(ways) > _MOST_GROUPS:
        rows.append([f"{len(ways) - _MOST_GROUPS} more", "", "", ""])
    return rows


def way(problem: Problem, strategy: Strategy, group: int) -> str:
    """How the gradients of a group are exchanged."""
    if len(strategy.used) == 1:
        return "nobody: one GPU"
    server = strategy.servers[group]
    return "all-reduce" if server is None else f"parameter server on {problem.devices.all[server].name}"
