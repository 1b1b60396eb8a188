"""The verdict on a run and what the rules find: one judgement, which the report shows in two places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.analysis.diagnosis import Verdict, diagnose
from ddlprof.analysis.findings import Finding
from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.rules.facts import gather_facts
from ddlprof.analysis.run import Attempt
from ddlprof.analysis.sources import Sources
from ddlprof.model.classes import COMM_PARTS
from ddlprof.model.manifest import Manifest
from ddlprof.report.run.advice import advise
from ddlprof.report.run.advice import headline as headline_of


@dataclass(frozen=True)
class VerdictLine:
    """What bounds the step, why, and what to do next."""

    name: str
    severity: str
    """ok, warning, critical, or unknown."""
    share: float | None
    """The share of the largest stall, of computing where no stall is worth a word."""
    why: str
    next: str
    rule: str | None = None
    """The rule of the finding whose action `next` is; None where no rule speaks of what bounds the step."""
    queued_share: float | None = None
    """The share of its time that the training waited for a processor; None where it is small or not known."""
    headline: str | None = None
    """What is said in place of the name where a stall is worth avoiding, but does not bound the step."""


@dataclass(frozen=True)
class Judged:
    """What is said of a run."""

    verdict: VerdictLine
    findings: list[Finding]
    """All of them, the verdict's own too."""


def judge_run(
    manifest: Manifest | None,
    headline: Attempt,
    sources: Sources,
    looking_s: float | None,
    cpu_percent: float | None,
    job: JobTime | None = None,
) -> Judged:
    """Judges the attempt that the headline is about. `looking_s`: the overhead of the hooks in a step."""
    facts = gather_facts(manifest, headline, sources, looking_s, cpu_percent, job)
    hooks_ns = looking_s * 1e9 if looking_s is not None else None
    verdict = diagnose(facts.summary, headline.steady_steps, hooks_ns, facts.world_size, facts.launch_bound)
    findings = apply_rules(facts, RULES)
    why, action = advise(verdict, facts)
    own = _finding_of(verdict, action, findings)
    if own is not None:
        action = own.next
    rule = own.rule if own is not None else None
    severity = "warning" if facts.starved and verdict.severity == "ok" else verdict.severity
    queued = facts.queued_share if facts.starved and not facts.crowded else None
    words = headline_of(verdict, facts)
    return Judged(VerdictLine(verdict.name, severity, verdict.share, why, action, rule, queued, words), findings)


def _finding_of(verdict: Verdict, action: str, findings: Sequence[Finding]) -> Finding | None:
    """The finding with this action, else the best one about what bounds the step."""
    if verdict.severity == "unknown":
        return None
    if same := next((finding for finding in findings if finding.next == action), None):
        return same
    about = "comm" if verdict.stall in COMM_PARTS and verdict.stall != "straggler" else verdict.stall or "compute"
    return next((finding for finding in findings if finding.about == about), None)
