"""The rule about a device whose clock is held down."""

from __future__ import annotations

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Found, Rule
from ddlprof.analysis.thresholds import (
    HOT_C,
    THROTTLED_CLOCK,
    THROTTLED_COMPUTE,
    THROTTLED_READINGS,
    THROTTLED_SHARE,
)
from ddlprof.base.units import percent, ranges


def throttling(facts: Facts) -> Found | None:
    """Devices held down by heat or power."""
    if not facts.throttled:
        return None
    worst = max(facts.throttled, key=lambda each: (each.lost_s, -each.rank))
    named = tuple(each.rank for each in facts.throttled)
    why = "heat" if worst.by_heat else "its power limit"
    evidence = f"rank {worst.rank}: {worst.clock_mhz:.0f} MHz in {percent(worst.readings_share)} of the readings, "
    evidence += f"{worst.free_clock_mhz:.0f} MHz otherwise"
    evidence += f", {worst.temperature_c:.0f} °C" if worst.temperature_c is not None else ""
    evidence += f"; it computes {facts.scale.time(worst.lost_s)} a step longer"
    step = facts.mean_s("step")
    action = (
        "see to the cooling of that machine, or move the job to another one"
        if worst.by_heat
        else "raise the power limit (nvidia-smi -pl) where the machine allows it, or share the power out differently"
    )
    which = f"rank{'s' * (len(named) > 1)} {ranges(named)}"
    return Found(f"the device of {which} is slowed down by {why}", evidence, action, worst.readings,
                 worst.lost_s / step if step else None, gain_s=worst.lost_s, ranks=named,
                 about="compute")  # fmt: skip


RULES = (
    Rule("throttling", "A device is slowed down by heat or power",
         f"{percent(THROTTLED_SHARE)} and at least {THROTTLED_READINGS} of the readings with a reason of the driver's "
         f"(or {HOT_C:.0f} °C where it gives none), a clock below {percent(THROTTLED_CLOCK)} of what it is otherwise, "
         f"and computing {percent(THROTTLED_COMPUTE - 1)} longer",
         "boost clocks move by less; a lower clock that costs nothing is no finding", 2 * THROTTLED_READINGS,
         "the driver does not tell clocks, or nothing is there to compare with: no other time and no other rank",
         throttling),
)  # fmt: skip
