"""All rules, and how they are applied. Issues are graded; those that chance or our overhead may explain are dropped.

A new rule is a function in one of the files of this folder and a line of its table.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.analysis.findings import SEVERITIES, Finding
from ddlprof.analysis.rules import (
    communication,
    compute,
    data_lines,
    epochs,
    experts,
    input,
    loop,
    machine,
    own_communication,
    pauses,
    pipeline,
    ranks,
    switches,
    updates,
)
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import CRITICAL_SHARE, CRITICAL_STEPS, STANDARD_ERRORS, WARN_SHARE

GROUPS: dict[str, tuple[Rule, ...]] = {
    "Input": input.RULES + data_lines.RULES,
    "Communication": communication.RULES + own_communication.RULES,
    "Computing": compute.RULES + switches.RULES + updates.RULES,
    "Ranks": ranks.RULES,
    "Pipelines": pipeline.RULES,
    "Experts": experts.RULES,
    "The loop and the job": loop.RULES + epochs.RULES + pauses.RULES,
    "Memory": machine.MEMORY_RULES,
    "Devices": machine.DEVICE_RULES,
}

RULES = tuple(rule for rules in GROUPS.values() for rule in rules)


def apply_rules(facts: Facts, rules: Sequence[Rule]) -> list[Finding]:
    """The findings of these rules, sorted by severity, then by gain (by share of the time if no gain is known).

    Of one severity, those whose cure changes what is trained, and those whose gain nobody has measured, are last.
    """
    findings = []
    last = {rule.name for rule in rules if rule.comes_last}
    for rule in rules:
        issue = rule.find(facts)
        if issue is None or issue.samples < rule.samples or _is_of_unmeasured_device(issue, facts):
            continue
        if not _may_be_noise(issue, facts):
            findings.append(_graded(rule, issue, facts))
    return sorted(
        findings,
        key=lambda found: (SEVERITIES.index(found.severity), found.rule in last, -_worth(found, facts)),
    )


def _is_of_unmeasured_device(issue: Issue, facts: Facts) -> bool:
    """Whether the issue is about a class of a step, but the device, which may hide the host's waits, was not timed."""
    return issue.about is not None and facts.summary.mean_ns("compute") is None


def _may_be_noise(issue: Issue, facts: Facts) -> bool:
    """Whether the share of the step may be chance, or is smaller than the overhead of the hooks."""
    if issue.share is None or issue.of != "step":
        return False
    concerned_ns = issue.share * (facts.summary.mean_ns("step") or 0.0)
    spread = facts.summary.spreads.get(issue.part or issue.about or "")
    by_chance_ns = STANDARD_ERRORS * ((spread.standard_error_ns if spread else None) or 0.0)
    return concerned_ns < max(by_chance_ns, 1e9 * (facts.overhead_s or 0.0))


def _graded(rule: Rule, issue: Issue, facts: Facts) -> Finding:
    severity = issue.severity or severity_of(issue.share, issue.samples if issue.of == "step" else CRITICAL_STEPS)
    gain_s, most_s = issue.gain_s, facts.most_gained_s.get(issue.about or "")
    if gain_s is not None and most_s is not None:
        gain_s = min(gain_s, most_s)
    return Finding(
        rule=rule.name,
        severity=severity,
        title=issue.title,
        evidence=issue.evidence,
        next=issue.next,
        samples=issue.samples,
        share=issue.share,
        of=issue.of,
        gain_s=gain_s,
        ranks=issue.ranks,
        about=issue.about,
        saves_part=issue.saves_part,
    )


def severity_of(share: float | None, steps: int) -> str:
    """The severity for a share of the step, or of the job, over so many steps."""
    if share is None or share < WARN_SHARE:
        return "info"
    return "critical" if share >= CRITICAL_SHARE and steps >= CRITICAL_STEPS else "warning"


def _worth(finding: Finding, facts: Facts) -> float:
    """The value of a finding for sorting, as a share of the step or of the job."""
    step_s = facts.mean_s("step")
    if finding.gain_s is not None and step_s:
        return finding.gain_s / step_s
    if finding.share is None and finding.severity == "critical":
        return 1.0  # the whole job is at stake
    return finding.share or 0.0
