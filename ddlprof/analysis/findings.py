"""The finding that a rule makes about a run. The rules are in `ddlprof.analysis.rules`."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run, or that would make it faster."""

    rule: str
    """The name of the rule, such as `loader_workers`."""
    severity: str
    """One of `SEVERITIES`."""
    title: str
    """What is wrong, in a few words."""
    evidence: str
    """The figures behind it, in one line."""
    next: str
    """What to do, in one line."""
    samples: int
    """The number of steps, or of readings, that the evidence rests on."""
    share: float | None = None
    """The affected share of the mean step, or of the job's wall time."""
    of: str = "step"
    """What `share` is a share of: `step` or `job`."""
    gain_s: float | None = None
    """An upper bound of the gain in each step, in seconds; None if the timeline does not tell."""
    ranks: tuple[int, ...] = ()
    """The ranks affected; empty: all."""
    about: str | None = None
    """The class of a step, or part of one, that would shrink; None: none."""
    saves_part: bool = False
    """Whether what is proposed saves a part of `share` that nothing in the run tells, so that no gain is promised."""
