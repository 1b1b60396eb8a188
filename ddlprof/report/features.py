"""The output of `ddlprof features`: the counts of a model and the operators of its step, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddlprof.base.text import text_of
from ddlprof.base.units import scaled
from ddlprof.model.manifest import ModelFacts
from ddlprof.model.operators import PHASES, Operator, StepMemory, StepOperators
from ddlprof.report.text import aligned

if TYPE_CHECKING:
    from ddlprof.recommender import Workload

_UNKNOWN = "not known"


def as_table(facts: ModelFacts, step: StepOperators | None, notes: list[str]) -> str:
    """One line for each count, the operators by phase and kind, the memory, then remarks."""
    rows = [
        ("model", facts.name or _UNKNOWN),
        ("layers", _number(facts.layers)),
        ("parameter tensors", _number(facts.parameter_tensors)),
        ("parameters", _number(facts.parameters)),
        ("gradients", _UNKNOWN if facts.gradient_bytes is None else scaled(facts.gradient_bytes, "B")),
        ("FLOPs per sample", _flops(facts)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    if step is not None:
        lines += ["", *_operators(step)]
        if step.memory is not None:
            lines += ["", *_memory(step.memory, step)]
    if notes:
        lines += [""] if step is not None else []
        lines += [f"note: {note}" for note in notes]
    return text_of(lines)


def table_of_sizes(workload: Workload) -> str:
    """One line for each figure that follows from the sizes of a transformer, then what was assumed."""
    sizes = workload.transformer
    assert sizes is not None  # the caller made the workload of them
    experts = f"{sizes.experts:,}, {sizes.experts_per_token} for a token" if sizes.experts else "none"
    rows = [
        ("model", workload.name),
        *([("software", workload.software)] if workload.software else []),
        ("layers", f"{sizes.layers:,}"),
        ("hidden", f"{sizes.hidden:,}"),
        ("heads", f"{sizes.heads:,}, {sizes.kv_heads:,} of keys and values"),
        ("experts", experts),
        ("tokens per sample", f"{sizes.seq:,}"),
        ("parameters", f"{sizes.parameters:,} ({scaled(sizes.parameters)})"),
        ("active parameters", f"{sizes.active_parameters:,} ({scaled(sizes.active_parameters)}) for a token"),
        ("FLOPs per token", f"{scaled(sizes.flops_per_token)}, forward and backward"),
        ("FLOPs per sample", scaled(sizes.flops_per_token * sizes.seq)),
    ]
    width = max(len(name) for name, _ in rows)
    return text_of([*(f"{name:{width}}  {value}" for name, value in rows), *(f"note: {n}" for n in workload.assumed)])


def _operators(step: StepOperators) -> list[str]:
    """A heading and a table: of each phase the kinds of operators, those that move most first."""
    all_flops, all_bytes = _total(step.operators, "flops"), _total(step.operators, "bytes")
    rows = []
    for phase in PHASES:
        kinds: dict[str, list[Operator]] = {}
        for operator in step.operators:
            if operator.phase == phase:
                kinds.setdefault(operator.kind, []).append(operator)
        ordered = sorted(kinds.items(), key=lambda each: _total(each[1], "bytes"), reverse=True)
        for place, (kind, members) in enumerate(ordered):
            rows.append([phase if place == 0 else "", kind, *_cells(members, all_flops, all_bytes)])
    rows.append(["step", "", *_cells(step.operators, all_flops, all_bytes)])
    heading = ["phase", "operators", "calls", "launches", "FLOPs", "share", "moved", "share"]
    return [_title(step), *aligned([heading, *rows], right=range(2, len(heading)))]


def _title(step: StepOperators) -> str:
    how = [step.precision, "forward alone" if not step.training else f"optimizer {step.optimizer or _UNKNOWN}"]
    how += ["activation checkpointing"] if step.checkpointing else []
    how += ["torch.compile"] if step.compiled else []
    how += ["channels last"] if step.channels_last else []
    return f"one step at batch {step.batch:,} ({', '.join(how)})"


def _cells(operators: Sequence[Operator], all_flops: float, all_bytes: float) -> list[str]:
    flops, moved = _total(operators, "flops"), _total(operators, "bytes")
    return [
        f"{sum(each.count for each in operators):,.0f}",
        f"{_total(operators, 'launches'):,.0f}",
        scaled(flops) if flops else "",
        _share(flops, all_flops),
        scaled(moved, "B"),
        _share(moved, all_bytes),
    ]


def _total(operators: Iterable[Operator], name: str) -> float:
    return float(sum(getattr(each, name) * each.count for each in operators))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if part and whole else ""


def _memory(memory: StepMemory, step: StepOperators) -> list[str]:
    """The known parts of the memory, one line for each."""
    saved = [("alive after forward, as its results are", memory.saved_bytes)]
    if step.training:
        saved = [
            ("activations saved for backward", memory.saved_bytes),
            ("the same, all blocks checkpointed", memory.kept_bytes),
        ]
    parts = [
        ("parameters", memory.parameter_bytes),
        *saved,
        ("temporary, at most", memory.temporary_bytes),
        ("inputs", memory.input_bytes),
    ]
    rows = [[name, scaled(value, "B")] for name, value in parts if value is not None]
    without = ", without gradients and optimizer" if step.training else ""
    return [f"memory at batch {step.batch:,}{without}", *aligned(rows, right={1})]


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _flops(facts: ModelFacts) -> str:
    forward, backward = facts.forward_flops_per_sample, facts.backward_flops_per_sample
    if forward is None or backward is None:
        return _UNKNOWN
    if not backward:
        return f"{scaled(forward)} (forward alone)"
    again = facts.recomputed_flops_per_sample
    parts = f"forward {scaled(forward)}, backward {scaled(backward)}"
    return f"{scaled(forward + backward)} ({parts}{f', of which {scaled(again)} are forward again' if again else ''})"
