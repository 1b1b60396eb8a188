"""What a scheduling policy is, and the policies by name: ours, those of other packages, and any class by its path.

A policy decides which jobs run on which GPUs; the simulation does the rest.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster
from ddlprof.extensions.cluster.speeds import Speeds


@dataclass(frozen=True)
class Decision:
    """The jobs that run from now on, and on which GPUs."""

    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    """By job_id. A running job whose lease is over stays if this has the allocation that it holds, moves if this has
    another one, and waits if this has none. A job whose lease is not over stays in any case."""
    wake_s: float | None = None
    """The time of the next decision at the latest, in seconds; None: the next event asks for it."""


class Policy(Protocol):
    """Decides which jobs run. Every simulation makes its own instance, which may keep state."""

    @property
    def lease_s(self) -> float:
        """For how many seconds a job keeps its GPUs before it may be preempted: 0: until the next decision; math.inf:
        until it ends."""

    @property
    def round_s(self) -> float | None:
        """The length of a round in seconds: it also decides once every round, counted from the first submission; None:
        it has no rounds. With rounds, the end of a lease does not ask for a decision: the next round does."""

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Called after arrivals, ends of jobs and of leases, rounds and wakes, once for all events of one moment.

        An allocation is of GPUs of one model, and of as many as the job asked for, unless its `max_gpus` lets a policy
        choose.

        `queue` is in the order of submission, `running` in that of their last start.
        """


ENTRY_POINTS = "ddlprof.policies"
"""The group of entry points in which packages register their policies."""

SEED = "seed"
"""The parameter of policies that draw random numbers."""

_OURS = {
    "aiturbo": "ddlprof.extensions.cluster.policies.aiturbo:Aiturbo",
    "consolidate": "ddlprof.extensions.cluster.policies.dally:Consolidate",
    "dally": "ddlprof.extensions.cluster.policies.dally:Dally",
    "elastic": "ddlprof.extensions.cluster.policies.elastic:Elastic",
    "fifo": "ddlprof.extensions.cluster.policies.fifo:Fifo",
    "fixed-max": "ddlprof.extensions.cluster.policies.elastic:FixedMax",
    "fixed-min": "ddlprof.extensions.cluster.policies.elastic:FixedMin",
    "fixed-random": "ddlprof.extensions.cluster.policies.elastic:FixedRandom",
    "las": "ddlprof.extensions.cluster.policies.las:Las",
    "no-wait": "ddlprof.extensions.cluster.policies.dally:NoWait",
    "optimus": "ddlprof.extensions.cluster.policies.aiturbo:Optimus",
    "srtf": "ddlprof.extensions.cluster.policies.srtf:Srtf",
}


def policy_names() -> list[str]:
    """The names of all policies, ours and those of other packages."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def policy_factory(text: str, seed: int = 0) -> Callable[[], Policy]:
    """A function that makes the policy `NAME` or `MODULE:CLASS`, with parameters after it: `dally;rack_delay=6`.

    A policy that draws random numbers has a parameter `seed`, and is given this one. Raises `UserError` for an unknown
    policy or parameter.
    """
    name, *given = text.split(";")
    kind = _class(name)
    known = inspect.signature(kind).parameters
    parameters: dict[str, float] = {"seed": seed} if SEED in known else {}
    for item in given:
        key, _, value = item.partition("=")
        if key not in known:
            raise UserError(f"--policy {text}: {name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise UserError(f"--policy {text}: {key} must be a number") from None
    return lambda: kind(**parameters)


def depends_on_seed(text: str) -> bool:
    """Whether a policy depends on the seed."""
    return SEED in inspect.signature(_class(text.partition(";")[0])).parameters


def _class(name: str) -> Callable[..., Policy]:
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    path = _OURS.get(name) or (points[name].value if name in points else name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(
            f"--policy {name}: unknown; there are {', '.join(policy_names())}, and your own as MODULE:CLASS"
        )
    try:
        found: Callable[..., Policy] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user's raises
        raise UserError(f"--policy {name}: {type(error).__name__}: {error}") from None
    if not callable(getattr(found, "decide", None)):
        raise UserError(f"--policy {name}: is no policy: a class with a method decide is expected")
    return found
