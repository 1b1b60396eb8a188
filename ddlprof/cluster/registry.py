"""The policies by name: ours, those that other packages register, and any class by its path."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from ddlprof.base.errors import UserError
from ddlprof.cluster.policy import Policy

ENTRY_POINTS = "ddlprof.policies"
"""The group of entry points in which a package names its own."""

SEED = "seed"
"""The parameter of policies that draw."""

_OURS = {
    "aiturbo": "ddlprof.cluster.policies.aiturbo:Aiturbo",
    "consolidate": "ddlprof.cluster.policies.consolidate:Consolidate",
    "dally": "ddlprof.cluster.policies.dally:Dally",
    "elastic": "ddlprof.cluster.policies.elastic:Elastic",
    "fifo": "ddlprof.cluster.policies.fifo:Fifo",
    "fixed-max": "ddlprof.cluster.policies.elastic:FixedMax",
    "fixed-min": "ddlprof.cluster.policies.elastic:FixedMin",
    "fixed-random": "ddlprof.cluster.policies.elastic:FixedRandom",
    "las": "ddlprof.cluster.policies.las:Las",
    "no-wait": "ddlprof.cluster.policies.no_wait:NoWait",
    "optimus": "ddlprof.cluster.policies.optimus:Optimus",
    "srtf": "ddlprof.cluster.policies.srtf:Srtf",
}


def names() -> list[str]:
    """All that can be asked for by name."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def policy(text: str, seed: int = 0) -> Callable[[], Policy]:
    """Makes policies of `NAME` or `MODULE:CLASS`, with parameters behind: `dally;rack_delay=6;lease_s=1200`.

    A policy that draws anything has a parameter `seed`, and is given this one. Raises `UserError` for a policy or a
    parameter that there is not.
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


def draws(text: str) -> bool:
    """Whether a policy depends on the seed."""
    return SEED in inspect.signature(_class(text.partition(";")[0])).parameters


def _class(name: str) -> Callable[..., Policy]:
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    path = _OURS.get(name) or (points[name].value if name in points else name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(f"--policy {name}: unknown; there are {', '.join(names())}, and your own as MODULE:CLASS")
    try:
        found: Callable[..., Policy] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user's raises
        raise UserError(f"--policy {name}: {type(error).__name__}: {error}") from None
    if not callable(getattr(found, "decide", None)):
        raise UserError(f"--policy {name}: is no policy: a class with a method decide is expected")
    return found
