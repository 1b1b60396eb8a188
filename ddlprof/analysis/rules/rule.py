"""The types of a rule and of the issue that it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddlprof.analysis.rules.facts import Facts


@dataclass(frozen=True)
class Issue:
    """What a rule found, before it is graded and becomes a `Finding`, which explains the fields."""

    title: str
    evidence: str
    next: str
    samples: int
    share: float | None = None
    of: str = "step"
    gain_s: float | None = None
    ranks: tuple[int, ...] = ()
    about: str | None = None
    part: str | None = None
    """The part of the class `about` that it concerns, where chance in the rest of the class does not matter. One that
    is no time of the summary was summed up by itself, so that chance is in nothing."""
    severity: str | None = None
    """The severity; None: it follows from `share`."""
    saves_part: bool = False


@dataclass(frozen=True)
class Rule:
    """One rule. `find` is a pure function; its issue is dropped where chance or our overhead may explain it."""

    name: str
    finds: str
    """What is wrong, in a few words."""
    threshold: str
    """The condition under which the rule finds something."""
    reason: str
    """The reason for the threshold."""
    samples: int
    """The fewest steps or readings that an issue must be based on."""
    abstains: str
    """When the rule finds nothing, beyond what holds for all rules."""
    find: Callable[[Facts], Issue | None]
    comes_last: bool = False
    """Whether it stands behind the others of its severity: its cure changes what is trained, such as the batch, or its
    gain was not measured in the run and may be none."""
    hides: bool = False
    """Whether it makes everything else take longer, or in vain: acted on first where it is more than an info."""
