"""Newer facts and prices from a cloud's own API, written to the user's overlay, never into the package.

`refresh(regions, overlay)` fetches, checks against what is known, writes, and says how each call went.
"""

from ddlprof.instance_catalog.refresh.report import KINDS, Contradiction, RefreshOutcome, RefreshReport
from ddlprof.instance_catalog.refresh.run import refresh

__all__ = ["KINDS", "Contradiction", "RefreshOutcome", "RefreshReport", "refresh"]
