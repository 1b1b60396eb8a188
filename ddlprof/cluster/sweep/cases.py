"""What is simulated: one case for each combination of what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Case:
    """One simulation."""

    policy: str
    """As typed, with its parameters."""
    seed: int = 0
    load: float | None = None
    """GPU-time asked for over GPU-time there is between the first and the last submission; None: as in the trace."""
    predictable: float | None = None
    """The share of jobs whose length can be told; None: that of every job is known from its beginning."""


def cases(
    policies: Sequence[str], seeds: Sequence[int], loads: Sequence[float | None], predictable: Sequence[float | None]
) -> list[Case]:
    """Every combination; those that are compared with each other stand together."""
    return [
        Case(policy, seed, load, share) for load, share, policy, seed in product(loads, predictable, policies, seeds)
    ]
