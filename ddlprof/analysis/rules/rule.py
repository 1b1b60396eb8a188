"""What a rule is, and what it says before it is graded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddlprof.analysis.rules.facts import Facts


@dataclass(frozen=True)
class Issue:
    """What a rule found, before it is graded and becomes a `Finding`, which has the same fields."""

    title: str
    evidence: str
    next: str
    samples: int
    share: float | None = None
    of: str = "step"
    gain_s: float | None = None
    ranks: tuple[int, ...] = ()
    about: str | None = None
    severity: str | None = None
    """The severity, where it does not follow from `share`."""


@dataclass(frozen=True)
class Rule:
    """One rule. `find` is a pure function; what it says is dropped where it may be chance, or the overhead's doing."""

    name: str
    finds: str
    """What is wrong, in a few words."""
    threshold: str
    """From where on it speaks."""
    reason: str
    """The reason for the threshold."""
    samples: int
    """The fewest steps or readings that it speaks of."""
    abstains: str
    """When it says nothing, besides what holds for all rules."""
    find: Callable[[Facts], Issue | None]
