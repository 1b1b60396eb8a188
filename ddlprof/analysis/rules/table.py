"""All rules, in groups. A new rule is a function in one of these files and a line of its table."""

from __future__ import annotations

from ddlprof.analysis.rules import communication, compute, device, input, loop, memory, ranks
from ddlprof.analysis.rules.rule import Rule

GROUPS: dict[str, tuple[Rule, ...]] = {
    "Input": input.RULES,
    "Communication": communication.RULES,
    "Computing": compute.RULES,
    "Ranks": ranks.RULES,
    "The loop and the job": loop.RULES,
    "Memory": memory.RULES,
    "Devices": device.RULES,
}

RULES = tuple(rule for rules in GROUPS.values() for rule in rules)
