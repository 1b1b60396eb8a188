"""How fast one thread of a processor is, by its family: instructions a clock over Skylake's, times the clock.

Instructions a clock are those of Netflix's service-capacity-modeling (`tools/instance_families.py`, Apache-2.0), clocks
those of all cores under load on EC2 (github.com/frank622/EC2_CPU_frequency, commit 05e1ddc; Broadwell's: a guess of
Netflix's), both read in November 2026. They are averages over many programs. Families that neither has are not known.
"""

from __future__ import annotations

import re

_SKYLAKE, _ICE_LAKE, _MILAN = 1.0, 1.15, 1.15
_SAPPHIRE_RAPIDS = _ICE_LAKE * 1.12
_SPEEDS = {
    r"broadwell|E5-26\d\d v4": 0.85 * 2.6,
    r"8275CL": _SKYLAKE * 3.0,
    r"skylake|cascade lake|8175|8259CL": _SKYLAKE * 3.1,
    r"ice lake|8375C": _ICE_LAKE * 3.5,
    r"sapphire rapids|8488C|848\dC?": _SAPPHIRE_RAPIDS * 3.2,
    r"emerald rapids|8559C|858\d|857\d": _SAPPHIRE_RAPIDS * 1.03 * 3.2,
    r"granite rapids|6975P": _SAPPHIRE_RAPIDS * 1.10 * 3.9,
    r"rome|7R32": 1.03 * 3.3,
    r"milan|7R13": _MILAN * 3.6,
    r"genoa|9R14": _MILAN * 1.13 * 3.7,
}
"""By a pattern of the processor's name, in the catalogue or as the system tells it: instructions a nanosecond over
those of a Skylake at 1 GHz."""


def single_thread_speed(cpu_model: str | None) -> float | None:
    """How fast a thread is, over one of a Skylake at 1 GHz; None: the family is not known."""
    for pattern, speed in _SPEEDS.items():
        if re.search(pattern, cpu_model or "", re.IGNORECASE):
            return speed
    return None
