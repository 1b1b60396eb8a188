"""No waiting: as Dally, but a job takes the closest GPUs that there are as soon as there are enough."""

from __future__ import annotations

from ddlprof.cluster.policies.dally import LEASE_S, Dally


class NoWait(Dally):
    """Dally with both delays 0."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        super().__init__(rack_delay=0.0, network_delay=0.0, lease_s=lease_s)
