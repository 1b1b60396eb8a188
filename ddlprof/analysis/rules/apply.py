"""All rules, and how they are applied: what they find is graded, and dropped where it may be chance or our overhead.

A new rule is a function in one of the files of this folder and a line of its table.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.analysis.findings import SEVERITIES, Finding
from ddlprof.analysis.rules import communication, compute, input, loop, machine, ranks
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import CRITICAL_SHARE, CRITICAL_STEPS, STANDARD_ERRORS, WARN_SHARE

GROUPS: dict[str, tuple[Rule, ...]] = {
    "Input": input.RULES,
    "Communication": communication.RULES,
    "Computing": compute.RULES,
    "Ranks": ranks.RULES,
    "The loop and the job": loop.RULES,
    "Memory": machine.MEMORY_RULES,
    "Devices": machine.DEVICE_RULES,
}

RULES = tuple(rule for rules in GROUPS.values() for rule in rules)


def apply_rules(facts: Facts, rules: Sequence[Rule]) -> list[Finding]:
    """The findings of these rules: critical ones first, then by the gain, or by the time that is concerned."""
    findings = []
    for rule in rules:
        found = rule.find(facts)
        if found is None or found.samples < rule.samples or _is_of_unmeasured_device(found, facts):
            continue
        if not _may_be_nothing(found, facts):
            findings.append(_graded(rule, found, facts))
    return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), -_worth(finding, facts)))


def _is_of_unmeasured_device(found: Issue, facts: Facts) -> bool:
    """Whether it is about a class of steps whose device nobody has timed, which may hide what the host waits for."""
    return found.about is not None and facts.summary.mean_ns("compute") is None


def _may_be_nothing(found: Issue, facts: Facts) -> bool:
    """Whether the share of the step may be chance, or is less than looking costs."""
    if found.share is None or found.of != "step":
        return False
    concerned_ns = found.share * (facts.summary.mean_ns("step") or 0.0)
    spread = facts.summary.spreads.get(found.about or "")
    by_chance_ns = STANDARD_ERRORS * ((spread.standard_error_ns if spread else None) or 0.0)
    return concerned_ns < max(by_chance_ns, 1e9 * (facts.overhead_s or 0.0))


def _graded(rule: Rule, found: Issue, facts: Facts) -> Finding:
    severity = found.severity or severity_of(found.share, found.samples if found.of == "step" else CRITICAL_STEPS)
    gain_s, most_s = found.gain_s, facts.most_gained_s.get(found.about or "")
    if gain_s is not None and most_s is not None:
        gain_s = min(gain_s, most_s)
    return Finding(
        rule=rule.name,
        severity=severity,
        title=found.title,
        evidence=found.evidence,
        next=found.next,
        samples=found.samples,
        share=found.share,
        of=found.of,
        gain_s=gain_s,
        ranks=found.ranks,
        about=found.about,
    )


def severity_of(share: float | None, steps: int) -> str:
    """The severity that a share of the step, or of the job, has."""
    if share is None or share < WARN_SHARE:
        return "info"
    return "critical" if share >= CRITICAL_SHARE and steps >= CRITICAL_STEPS else "warning"


def _worth(finding: Finding, facts: Facts) -> float:
    """The value of a finding, as a share of the time that it is about."""
    step_s = facts.mean_s("step")
    if finding.gain_s is not None and step_s:
        return finding.gain_s / step_s
    if finding.share is None and finding.severity == "critical":
        return 1.0  # the whole job is at stake
    return finding.share or 0.0
