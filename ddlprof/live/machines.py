"""What a snapshot says of machines: energy, counters of a sick one, and why a job hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlprof.analysis.hang_facts import Hang
from ddlprof.analysis.hangs import hang_of
from ddlprof.analysis.health import moved_of
from ddlprof.analysis.run import Attempt
from ddlprof.live.follower import Followed
from ddlprof.live.growing import GrowingRank
from ddlprof.model.health import HealthCounter
from ddlprof.store import RunData


@dataclass(frozen=True)
class SickView:
    """The machine or device of the late rank, which counts errors or shortages while the rank is late."""

    rank: int
    host: str
    counter: HealthCounter
    per_s: float
    """The rate of the counter while it moved; of a level, its mean."""


def tellers(followed: Sequence[Followed]) -> set[int]:
    """The first rank on each machine that reads the energy of its processors."""
    found: dict[int, int] = {}
    for each in followed:
        if each.growing.host_energy.joules is not None:
            found.setdefault(each.recent.node, each.recent.rank)
    return set(found.values())


def device_power(growing: GrowingRank) -> float | None:
    """The power of a rank's device, in watts, by its counter of energy, or as it was read last."""
    if growing.device_energy.watts is not None:
        return growing.device_energy.watts
    watts = growing.counters.get("gpu_power_w", float("nan"))
    return None if np.isnan(watts) else watts


def sick_machine(headline: Attempt) -> SickView | None:
    """The machine of the late rank, if its counters tell why; None otherwise."""
    late, moved = headline.late_rank, moved_of(headline)
    if late is None or not moved:
        return None
    host = next(rank.data.header.host for rank in headline.ranks if rank.data.rank == late.rank)
    return SickView(late.rank, host, moved[0].counter, moved[0].per_s)


def hang_now(data: RunData) -> Hang | None:
    """Why the job hangs; None also where ranks wait for one that is at work."""
    found = hang_of(data)
    return found if found is not None and found.is_hang else None
