"""Newer facts and prices, written to the user's overlay, never into the package.

`refresh_published(overlay)` takes the prices of all clouds that others publish, `refresh(regions, overlay)` facts and
prices from a cloud's own API. Both check what they are told against what is known, and say what came of each call.
"""

from ddlprof.instance_catalog.refresh.providers.gpuhunt import CLOUDS as PUBLISHED
from ddlprof.instance_catalog.refresh.published import refresh_published
from ddlprof.instance_catalog.refresh.report import KINDS, Contradiction, Move, RefreshOutcome, RefreshReport
from ddlprof.instance_catalog.refresh.run import PROVIDERS, refresh

__all__ = [
    "KINDS",
    "PROVIDERS",
    "PUBLISHED",
    "Contradiction",
    "Move",
    "RefreshOutcome",
    "RefreshReport",
    "refresh",
    "refresh_published",
]
