"""The cost of a machine for a time, and the time that a job takes from order to last step."""

from __future__ import annotations

import math

STARTUP_S = 180.0
"""The time from the order of a machine until the job starts: provisioning, boot, environment. An assumption, not a
measurement: minutes for a plain image; large images and data sets that must be copied first take longer."""

MINIMUM_S = 60.0
"""The shortest time that is billed (AWS, Linux on demand: one minute)."""

_GRANULARITY_S = {"aws": 1.0, "gcp": 1.0, "azure": 60.0, "lambda": 60.0}
"""The time that a bill is rounded up to."""


def cost_usd(usd_per_hour: float, nodes: int, time_s: float, cloud: str) -> float:
    """The price of `nodes` machines for `time_s` seconds, rounded up as the cloud bills; no disks, no traffic."""
    granularity_s = _GRANULARITY_S.get(cloud, 1.0)
    billed_s = max(MINIMUM_S, math.ceil(time_s / granularity_s) * granularity_s)
    return usd_per_hour * nodes * billed_s / 3600
