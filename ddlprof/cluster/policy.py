"""What a policy is: one file with one class, which decides who runs where; the simulation does the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.machines import Allocation, Cluster
from ddlprof.cluster.speeds import Speeds


@dataclass(frozen=True)
class Decision:
    """Who runs from now on."""

    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    """By job_id. A running job whose lease is over goes on where it is if it is here with what it holds, moves if it is
    here with something else, and waits if it is not here. One with a lease goes on, here or not."""
    wake_s: float | None = None
    """When to ask again, at the latest; None: when something happens."""


class Policy(Protocol):
    """Decides. A simulation makes one of its own, which may remember what it saw."""

    @property
    def lease_s(self) -> float:
        """For how long nobody takes away what it gave: 0: until it is asked again, math.inf: until the job ends."""

    @property
    def round_s(self) -> float | None:
        """Overheads whenever something happens, it is asked once in so many seconds from the first submission on; None:
        it is not. With rounds, an end of a lease alone is nothing that happens: the next round is early enough."""

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Asked after arrivals, ends of jobs and of leases, rounds and wakes, once for all of one moment.

        An allocation is of GPUs of one model, and of as many as the job asked for, unless its `max_gpus` lets a policy
        choose.

        `queue` is in the order of submission, `running` in that of their last start.
        """
