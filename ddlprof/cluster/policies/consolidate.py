"""Full consolidation: as Dally, but a job that fits a machine, or a rack, waits for one however long it takes."""

from __future__ import annotations

import math

from ddlprof.cluster.policies.dally import LEASE_S, Dally


class Consolidate(Dally):
    """Dally with delays that never end."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        super().__init__(rack_delay=math.inf, network_delay=math.inf, lease_s=lease_s)
