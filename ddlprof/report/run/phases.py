"""The phases of a training on the card: which one it is of, and how to see the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlprof.analysis.phases import PhaseLine
from ddlprof.analysis.run import Attempt
from ddlprof.base.errors import UserError
from ddlprof.base.units import count, percent, scale_for

SHOWN_LINES = 5
LEAST_SHARE = 0.005  # of the time of all steps: a shorter phase gets no line on the card


def phase_lines(lines: Sequence[PhaseLine], shown: int | None, run: str) -> Iterator[tuple[str, str]]:
    """The lines of the card: a label and a text each."""
    most = sorted(lines, key=lambda line: (line.number != shown, -line.share))
    chosen = [line for line in most if line.share >= LEAST_SHARE or line.number == shown][:SHOWN_LINES]
    for line in sorted(chosen, key=lambda line: line.number):
        yield f"Phase {line.number}", f"{phase_text(line, lines)}{_which(line, lines, shown, run)}"
    if left := len(lines) - len(chosen):
        yield "Phases", f"{count(left, 'more')}: ddlprof report {run} --format json has all"


def phase_text(line: PhaseLine, lines: Sequence[PhaseLine]) -> str:
    """`5 phases of Encoder with Adam, 200 steps, 6.01 ms mean, 37 % of the time of all steps`."""
    alike = [other for other in lines if other.name == line.name]
    size = f" ({line.parameters:,} parameters)" if len(alike) > 1 and line.parameters is not None else ""
    many = f"{line.phases:,} phases of " if line.phases > 1 else ""
    mean = f", {scale_for(line.mean_s).time(line.mean_s)} mean" if line.mean_s is not None else ""
    return f"{many}{line.name}{size}, {count(line.steps, 'step')}{mean}, {percent(line.share)} of the time of all steps"


def _which(line: PhaseLine, lines: Sequence[PhaseLine], shown: int | None, run: str) -> str:
    if len(lines) == 1:
        return ""
    return ": all else here is of it" if line.number == shown else f": ddlprof report {run} --phase {line.number}"


def require_phase(attempt: Attempt | None, wanted: int | None) -> None:
    """Raises UserError if the attempt of the headline has no phase of this number."""
    if wanted is None or attempt is None:
        return
    numbers = [line.number for line in attempt.phases.lines] if attempt.phases is not None else []
    if wanted not in numbers:
        has = f"it has phases 1 to {len(numbers)}" if len(numbers) > 1 else "it has one phase: leave out --phase"
        raise UserError(f"--phase {wanted}: the run has no such phase; {has}")
