"""The policies by name: ours, those that other packages register, and any class by its path."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from ddlprof.cluster.policy import Policy
from ddlprof.model.errors import UserError

ENTRY_POINTS = "ddlprof.policies"
"""The group of entry points in which a package names its own."""

_OURS = {
    "consolidate": "ddlprof.cluster.policies.consolidate:Consolidate",
    "dally": "ddlprof.cluster.policies.dally:Dally",
    "fifo": "ddlprof.cluster.policies.fifo:Fifo",
    "las": "ddlprof.cluster.policies.las:Las",
    "no-wait": "ddlprof.cluster.policies.no_wait:NoWait",
}


def names() -> list[str]:
    """All that can be asked for by name."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def policy(text: str) -> Callable[[], Policy]:
    """Makes policies of `NAME` or `MODULE:CLASS`, with parameters behind: `dally;rack_delay=6;lease_s=1200`.

    Raises `UserError` for a policy or a parameter that there is not.
    """
    name, *given = text.split(";")
    kind = _class(name)
    known = inspect.signature(kind).parameters
    parameters: dict[str, float] = {}
    for item in given:
        key, _, value = item.partition("=")
        if key not in known:
            raise UserError(f"--policy {text}: {name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise UserError(f"--policy {text}: {key} must be a number") from None
    return lambda: kind(**parameters)


def _class(name: str) -> Callable[..., Policy]:
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    path = _OURS.get(name) or (points[name].value if name in points else name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(f"--policy {name}: unknown; there are {', '.join(names())}, and your own as MODULE:CLASS")
    try:
        found: Callable[..., Policy] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"--policy {name}: {error}") from None
    return found
