"""Limits on how much longer B may be than A: what `ddlprof compare --fail-on` asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.analysis.compare import SLOWER, Difference
from ddlprof.base.errors import UserError
from ddlprof.model.classes import TIMES

_UNITS_NS = {"us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|us|µs|ms|s)", re.ASCII)

BROKEN, KEPT, IN_NOISE = "broken", "kept", "within the noise"


@dataclass(frozen=True)
class Gate:
    """The most by which a time may grow: a share of A's step, or nanoseconds."""

    name: str
    text: str
    """The gate as it was typed: `data=5%`."""
    share: float | None = None
    ns: float | None = None


@dataclass(frozen=True)
class Judged:
    """A gate and what came of it."""

    gate: Gate
    state: str
    """broken, kept, or within the noise: then B is above the limit, and that may be chance."""
    limit_ns: float
    difference_ns: float

    @property
    def broken(self) -> bool:
        """Whether the comparison fails."""
        return self.state == BROKEN


def parse_gates(text: str) -> list[Gate]:
    """The gates of `data=5%,step=3ms`. Raises UserError where one is no gate or names no class."""
    return [_gate(each.strip()) for each in text.split(",") if each.strip()]


def _gate(text: str) -> Gate:
    name, equals, limit = (part.strip() for part in text.partition("="))
    if name not in TIMES:
        raise UserError(f"--fail-on {text!r}: no class is called {name!r}; known: {', '.join(TIMES)}")
    found = _LIMIT.fullmatch(limit)
    if not equals or found is None:
        raise UserError(f"--fail-on {text!r}: give what {name} may grow by: {name}=5% (of A's step) or {name}=8ms")
    number, unit = float(found[1]), found[2]
    if not math.isfinite(number):
        raise UserError(f"--fail-on {text!r}: the limit is too large to mean anything")
    if unit == "%":
        return Gate(name, text, share=number / 100)
    return Gate(name, text, ns=number * _UNITS_NS[unit])


def judge(gates: Sequence[Gate], differences: Sequence[Difference]) -> list[Judged]:
    """Every gate against the comparison. Raises UserError where a class was not measured on both sides."""
    found = {each.name: each for each in differences}
    step_ns = found["step"].a_ns or 0.0
    return [_judged(gate, found[gate.name], step_ns) for gate in gates]


def _judged(gate: Gate, difference: Difference, step_ns: float) -> Judged:
    if difference.mean is None:
        missing = [side for side, ns in (("A", difference.a_ns), ("B", difference.b_ns)) if ns is None]
        raise UserError(
            f"--fail-on {gate.text!r}: {gate.name} was not measured in {' and '.join(missing)}, so nothing can be said"
        )
    limit_ns = gate.share * step_ns if gate.share is not None else gate.ns or 0.0
    broken = [each for each in difference.shifts if each.ns > limit_ns and each.word == SLOWER]
    if broken:
        return Judged(gate, BROKEN, limit_ns, broken[0].ns)
    return Judged(gate, IN_NOISE if difference.mean.ns > limit_ns else KEPT, limit_ns, difference.mean.ns)
