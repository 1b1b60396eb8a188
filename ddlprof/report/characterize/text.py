"""The result of `ddlprof characterize` as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlprof.base.units import NOT_KNOWN, Scale, scale_for, tenths_of_percent
from ddlprof.model.classes import TABLE
from ddlprof.report.characterize.data import Comparison, ExperimentLine, StallLine
from ddlprof.report.text import aligned, text_of

_PARTS = ("data_fetch", "data_prep", "straggler")
"""The parts of classes that are worth a column: the others stay as they are in all experiments."""


def as_table(comparison: Comparison) -> str:
    """The stalls, the runs that they come from, and what to mind."""
    scale = scale_for(comparison.reference_step_s)
    lines = [f"ddlprof  characterize {comparison.name} · step {scale.time(comparison.reference_step_s)}", ""]
    lines += aligned(list(_stall_rows(comparison.stalls, scale)))
    lines += ["", *aligned(list(_experiment_rows(comparison.experiments, scale))), ""]
    lines += [f"Remark   {remark}" for remark in comparison.remarks]
    lines.append(f"Files    {comparison.directory}")
    return text_of(lines)


def _stall_rows(stalls: Sequence[StallLine], scale: Scale) -> Iterator[list[str]]:
    unit = scale.unit
    yield ["STALL", f"BY DIFFERENCE {unit}", f"DIRECT {unit}", "DISAGREEMENT", "DIFFERENCE OF", "DIRECT IS"]
    for stall in stalls:
        spread = ""
        if stall.stall_low_s is not None and stall.stall_high_s is not None:
            spread = f" [{scale.number(stall.stall_low_s)} to {scale.number(stall.stall_high_s)}]"
        yield [
            stall.name,
            _with_share(stall.stall_s, stall.stall_share, scale) + spread,
            _with_share(stall.direct_s, stall.direct_share, scale),
            NOT_KNOWN if stall.disagreement_share is None else tenths_of_percent(stall.disagreement_share),
            f"{stall.whole} - {stall.part}",
            stall.direct_is,
        ]


def _experiment_rows(experiments: Sequence[ExperimentLine], scale: Scale) -> Iterator[list[str]]:
    yield ["EXPERIMENT", "RANKS", "STEPS", f"STEP {scale.unit}", *(name.upper() for name in _times())]
    for line in experiments:
        step = scale.number(line.step_s)
        if len(line.runs) > 1:
            step += f" [{scale.number(line.step_low_s)} to {scale.number(line.step_high_s)}]"
        times = [line.times_s[name] for name in _times()]
        numbers = [NOT_KNOWN if time is None else scale.number(time) for time in times]
        yield [line.name, str(line.ranks), str(line.steady_steps), step, *numbers]


def _times() -> Iterator[str]:
    """The columns: a class comes after its recorded parts, and before those that come from comparing ranks."""
    for each in TABLE:
        shown = [part for part in each.parts if part.name in _PARTS]
        yield from (part.name for part in shown if part.is_recorded)
        yield each.name
        yield from (part.name for part in shown if not part.is_recorded)


def _with_share(seconds: float | None, share: float | None, scale: Scale) -> str:
    if seconds is None or share is None:
        return NOT_KNOWN
    return f"{scale.number(seconds)} ({tenths_of_percent(share)})"
