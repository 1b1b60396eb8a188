"""How the figures of a comparison are written, in all of its formats."""

from __future__ import annotations

from ddlprof.analysis.shifts import NONE
from ddlprof.base.units import Scale, signed_percent
from ddlprof.report.compare.data import RowLine, ShiftLine

_MOST = 10.0
"""A larger share is not told exactly."""


def figures(row: RowLine, scale: Scale) -> list[str]:
    """A, B, the difference, its share of A's step, the interval of that and the outcome; what is not known is empty."""
    times = ["" if seconds is None else scale.number(seconds) for seconds in (row.a_s, row.b_s)]
    if row.mean is None or not (row.a_s or row.b_s):
        return [*times, "", "", "", _outcome(row)]
    return [*times, signed(row.mean.difference_s, scale), change(row.mean), interval_of(row.mean), _outcome(row)]


def heads(row: str, of: str, scale: Scale, per: str = "") -> list[str]:
    """What stands above these, after `row` above the names. `of`: what shares are of in A; `per`: ` a sample`."""
    return [row, f"A {scale.unit}{per}", f"B {scale.unit}{per}", "B - A", f"of A's {of}", "interval", "outcome"]


def _outcome(row: RowLine) -> str:
    return "no difference" if row.word == NONE else row.word


def signed(seconds: float, scale: Scale) -> str:
    """A difference with its sign."""
    text = scale.number(abs(seconds))
    return text if float(text) == 0 else f"{'+' if seconds > 0 else '-'}{text}"


def change(shift: ShiftLine) -> str:
    """A difference as a share, with its sign; empty where it is not known."""
    return "" if shift.share is None else signed_percent(shift.share)


def interval_of(shift: ShiftLine) -> str:
    """`+3.1 % to +7.3 %`; empty where it is not known."""
    if shift.low_share is None or shift.high_share is None:
        return ""
    high = f"over +{100 * _MOST:,.0f} %" if shift.high_share > _MOST else signed_percent(shift.high_share)
    return f"{signed_percent(shift.low_share)} to {high}"
