"""Decides what bounds the step. `verdict.py` words it; `ddlprof.analysis.thresholds` has the limits.

Nothing is concluded from a signal that is missing, or that the overhead of the hooks could have caused.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.analysis.summary import Summary
from ddlprof.analysis.thresholds import (
    BOUND_SHARE,
    CAUSE_SHARE,
    CRITICAL_SHARE,
    CRITICAL_STEPS,
    STANDARD_ERRORS,
    VERDICT_STEPS,
    WARN_SHARE,
)
from ddlprof.model.classes import STALLS


@dataclass(frozen=True)
class Verdict:
    """What bounds the step. `stall`: the largest stall; None if it is too small to mention, or nothing can be said.

    COMPUTE-BOUND with a stall means that more of the step is computing, but the stall is worth avoiding.
    """

    name: str
    """COMPUTE-BOUND, LAUNCH-BOUND, DATA-BOUND, ..., UNDECIDED."""
    severity: str
    """`ok`, `warning`, `critical`, or `unknown`."""
    stall: str | None = None
    share: float | None = None
    """The share of the stall in the step, or that of computing if there is no stall."""
    cause: str | None = None
    """The part of the stall that explains most of it: `fetch` or `prep` of data."""
    reason: str | None = None
    """The reason why nothing can be said: `few_steps`, `looking`, `noise`, `comm_unmeasured` or `device_unmeasured`."""


def diagnose(
    summary: Summary, steady_steps: int, overhead_ns: float | None, ranks: int = 1, launch_bound: bool = False
) -> Verdict:
    """The verdict over `steady_steps` steps of each of `ranks`. `overhead_ns`: the overhead of the hooks in a step.

    `launch_bound`: whether the device waits for the host while it computes.
    """
    step = summary.mean_ns("step")
    if steady_steps < VERDICT_STEPS or not step:
        return Verdict("UNDECIDED", "unknown", reason="few_steps")
    if summary.mean_ns("compute") is None:  # nor is it known which waits the device hides
        return Verdict("UNDECIDED", "unknown", reason="device_unmeasured")
    stalls = stall_means(summary)
    stall = max(stalls, key=lambda name: stalls[name], default=None)
    small = stall is None or stalls[stall] < WARN_SHARE * step
    if ranks > 1 and summary.mean_ns("comm") is None and (small or stall == "other"):  # it is in compute or other
        share = (summary.mean_ns("compute") or 0.0) + (summary.mean_ns("other") or 0.0)
        return Verdict("UNDECIDED", "unknown", share=share / step, reason="comm_unmeasured")
    if stall is None or small:
        return _computing(summary, launch_bound)
    share = stalls[stall] / step
    if stalls[stall] < (overhead_ns or 0.0):
        return Verdict("UNDECIDED", "unknown", stall, share, reason="looking")
    if stalls[stall] < STANDARD_ERRORS * (summary.spreads[stall].standard_error_ns or 0.0):
        return Verdict("UNDECIDED", "unknown", stall, share, reason="noise")
    critical = share >= CRITICAL_SHARE and steady_steps >= CRITICAL_STEPS
    severity = "critical" if critical else "warning"
    computes = share < BOUND_SHARE and share < (summary.share("compute") or 0.0)
    if computes and launch_bound:
        return _computing(summary, launch_bound)
    name = "COMPUTE-BOUND" if computes else f"{stall.upper()}-BOUND"
    return Verdict(name, severity, stall, share, _cause_of(stall, summary))


def _computing(summary: Summary, launch_bound: bool) -> Verdict:
    share = summary.share("compute")
    return (
        Verdict("LAUNCH-BOUND", "warning", share=share) if launch_bound else Verdict("COMPUTE-BOUND", "ok", share=share)
    )


def stall_means(summary: Summary) -> dict[str, float]:
    """The measured stalls in ns, none counted twice: `comm` and `other` are given without their known parts."""
    means = {name: mean for name in STALLS if (mean := summary.mean_ns(name)) is not None}
    if "rollout" in means:
        means["other"] -= means["rollout"]
    if "interconnect" in means:
        means.pop("comm", None)
    else:
        for part in ("straggler", "bubble"):
            if part in means:
                means["comm"] -= means[part]
    return means


def _cause_of(stall: str, summary: Summary) -> str | None:
    if stall != "data":
        return None
    whole = summary.mean_ns("data") or 0.0
    for cause in ("fetch", "prep"):
        if (summary.mean_ns(f"data_{cause}") or 0.0) >= CAUSE_SHARE * whole:
            return cause
    return None
