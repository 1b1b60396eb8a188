"""The verdict on a run in words: what bounds the step, why, and what to do next, one line each.

The advice is that of the rules for such a stall, even where no rule is sure enough for a finding. It names only what
the job does not do yet, as far as that is known (`Facts`); where it is not known, it says "where ...".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.analysis.diagnosis import Verdict, diagnose, stall_means
from ddlprof.analysis.findings import Finding
from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.rules.communication import less_communication
from ddlprof.analysis.rules.compute import free_processors, launch_less, starved_words, waiting_device
from ddlprof.analysis.rules.epochs import new_iterators
from ddlprof.analysis.rules.facts import Facts, gather_facts
from ddlprof.analysis.rules.input import handed_s, more_workers, sooner_copies
from ddlprof.analysis.rules.line_advice import LESS_ROLLOUT, main_line, words_for_line
from ddlprof.analysis.rules.pipeline import less_bubble, why_bubble
from ddlprof.analysis.rules.ranks import help_late_rank, uneven_input
from ddlprof.analysis.run import Attempt
from ddlprof.analysis.sources import TIMED, Sources
from ddlprof.analysis.thresholds import (
    BUSY_CPU_PERCENT,
    CAUSE_SHARE,
    FREE_CPU_PERCENT,
    LINE_SAMPLES,
    THREAD_BUSY_SHARE,
    WARN_SHARE,
)
from ddlprof.base.units import count, either, percent, significant
from ddlprof.model import source_locations
from ddlprof.model.classes import COMM_PARTS, TABLE
from ddlprof.model.manifest import Manifest
from ddlprof.model.operators import StepOperators

_OF_ROLLOUT = (*TIMED, source_locations.ENVIRONMENT)
"""Words of lines that are the rollout itself."""
_NAMES = {each.name: each.words for each in TABLE if each.words}
"""The words for a class in a sentence, where its name is not clear enough."""


@dataclass(frozen=True)
class VerdictLine:
    """What bounds the step, why, and what to do next."""

    name: str
    severity: str
    """One of ok, warning, critical and unknown."""
    share: float | None
    """The largest stall as a share of the step; the share of computing where no stall is large enough."""
    why: str
    next: str
    rule: str | None = None
    """The rule of the finding whose action `next` is; None where no rule speaks of what bounds the step."""
    queued_share: float | None = None
    """The share of its time that the training waited for a processor; None where it is small or not known."""
    headline: str | None = None
    """The words in place of the name where a stall is worth avoiding, but does not bound the step, or where something
    beside the steps takes more of the job."""


@dataclass(frozen=True)
class Judged:
    """The verdict on a run, and the findings."""

    verdict: VerdictLine
    findings: list[Finding]
    """All findings, including the one that the verdict is based on."""


def judge_run(
    manifest: Manifest | None,
    headline: Attempt,
    sources: Sources,
    hooks_s: float | None,
    cpu_percent: float | None,
    job: JobTime | None = None,
    step: StepOperators | None = None,
) -> Judged:
    """Judges the attempt that the headline is about. `hooks_s`: the overhead of the hooks in a step."""
    facts = gather_facts(manifest, headline, sources, hooks_s, cpu_percent, job, step)
    hooks_ns = hooks_s * 1e9 if hooks_s is not None else None
    verdict = diagnose(facts.summary, headline.steady_steps, hooks_ns, facts.world_size, facts.launch_bound)
    findings = apply_rules(facts, RULES)
    why, action = advise(verdict, facts)
    own = _finding_of(verdict, action, findings)
    if own is not None:
        action = own.next
    rule = own.rule if own is not None else None
    if verdict.name == "COMPUTE-BOUND" and all(each is own for each in findings):
        action = _alone(action, facts)
    severity = "warning" if facts.starved and verdict.severity == "ok" else verdict.severity
    queued = facts.host.queued_share if facts.shares_machine else None
    words = headline_words(verdict, facts)
    first = (
        _hiding(findings)
        or _first_of_job(verdict, own, findings, job)
        or _of_late_rank(verdict, own, findings, facts)
        or _of_computing(verdict, own, findings)
    )
    if first is not None:
        if starved_words(facts) in first.evidence:
            why = why.removesuffix(_waits(facts))  # said once
        why, action, rule = f"{first.evidence}; of the steps, {why}", first.next, first.rule
        share = f", {percent(first.share)} of it" if first.share is not None else ""
        words, severity = f"{first.title}{share}", first.severity
    elif own is not None:
        why = _with_cause(why, verdict, own, facts)
    return Judged(VerdictLine(verdict.name, severity, verdict.share, why, action, rule, queued, words), findings)


def _finding_of(verdict: Verdict, action: str, findings: Sequence[Finding]) -> Finding | None:
    """The finding with this action, else the best one about what bounds the step."""
    if verdict.severity == "unknown":
        return None
    same = next((finding for finding in findings if finding.next == action), None)
    moving = verdict.stall in COMM_PARTS and verdict.stall not in ("straggler", "bubble")
    about = "comm" if moving else verdict.stall or "compute"
    chosen = next((finding for finding in findings if finding.about == about), None)
    if same is not None and same.about is not None and verdict.stall is not None:
        return chosen if moving and chosen is not None and _is_more(chosen, same) else same
    return same if chosen is None or (same is not None and chosen.severity == "info") else chosen


def _is_more(one: Finding, other: Finding) -> bool:
    """Whether a finding gains more than another one; where it is not known what it gains, concerns more of the step."""
    if one.gain_s is None:
        return (one.share or 0.0) > (other.share or 0.0)
    return one.gain_s > (other.gain_s or 0.0)


def _with_cause(why: str, verdict: Verdict, own: Finding, facts: Facts) -> str:
    """`why`, with the finding that is acted on where it would only say that computing takes the step."""
    if verdict.name != "COMPUTE-BOUND" or verdict.stall is not None or own.evidence in why:
        return why
    return f"{why.removesuffix(_waits(facts))}; {own.title}: {own.evidence}{_waits(facts)}"


def _waits(facts: Facts) -> str:
    """What a reason ends with where the training waits for processors; else nothing."""
    return f"; {starved_words(facts)}" if facts.starved else ""


def _hiding(findings: Sequence[Finding]) -> Finding | None:
    """The finding of something that makes all else take longer: until it is gone, nobody knows what else does."""
    names = {rule.name for rule in RULES if rule.hides}
    return next((each for each in findings if each.rule in names and each.severity != "info"), None)


def _of_late_rank(verdict: Verdict, own: Finding | None, findings: Sequence[Finding], facts: Facts) -> Finding | None:
    """The finding about a late rank that has nearly all of the stall that bounds the step, or that takes longer than
    all of that stall, where it gains more: of its work a mean over ranks shows a part, and of the waits another one.

    Its gain is at most what the others wait for it, as far as that is known.
    """
    rank, found = facts.late_rank, next((each for each in findings if each.rule == "straggler"), None)
    if found is None or rank is None or verdict.stall is None or rank.cause is None:
        return None
    more_ns, stall_ns = (rank.own_ns or 0.0) - (rank.typical_ns or 0.0), facts.summary.mean_ns(verdict.stall) or 0.0
    has_it = rank.cause == verdict.stall and more_ns >= CAUSE_SHARE * facts.world_size * stall_ns
    gain_s, waits_s = found.gain_s or 0.0, facts.mean_s("straggler")
    if waits_s is not None:  # a mean over ranks, of which the late one hardly waits
        gain_s = min(gain_s, waits_s * facts.world_size / max(1, facts.world_size - 1) * rank.last_share)
    is_longer = waits_s is not None and rank.cause != verdict.stall and 1e9 * gain_s > stall_ns
    gains_more = gain_s > ((own.gain_s or 0.0) if own is not None else 0.0)
    return found if (has_it or is_longer) and gains_more else None


def _of_computing(verdict: Verdict, own: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """The finding to act on where computing bounds the step, and its own finding speaks of something smaller.

    That is the first one that is more than an info where only an info, or a faster machine, would be proposed; and
    where a stall can be avoided beside computing, one about computing that gains half as much again.
    """
    found = [each for each in findings if each.severity != "info"]
    if verdict.stall is None:
        others = own is None or own.severity == "info"
        return next(iter(found), None) if others and verdict.severity != "unknown" else None
    if verdict.name != "COMPUTE-BOUND":
        return None
    least_s = 1.5 * (own.gain_s or 0.0) if own is not None else 0.0
    return next((each for each in found if each.about == "compute" and (each.gain_s or 0.0) > least_s), None)


def _first_of_job(
    verdict: Verdict, own: Finding | None, findings: Sequence[Finding], job: JobTime | None
) -> Finding | None:
    """The finding about the job beside its steps that is worth more than what bounds the steps, and than what their
    own finding may gain; None: none is. Of one that saves a part of its share, half counts against other findings."""
    steps = job.share("steps") if job is not None else None
    of_job = [each for each in findings if each.of == "job" and each.severity != "info"]
    first = max(of_job, key=_of_share, default=None)
    if first is None or job is None or steps is None:
        return None
    stall = steps * (verdict.share or 0.0) if verdict.stall is not None else 0.0
    gain = (own.gain_s or 0.0) * job.steps / job.wall_s if own is not None else 0.0
    return first if (first.share or 0.0) > stall and _of_share(first) > gain else None


def _of_share(finding: Finding) -> float:
    """How much of the share of a finding counts as its gain."""
    return (finding.share or 0.0) * (0.5 if finding.saves_part else 1.0)


def headline_words(verdict: Verdict, facts: Facts) -> str | None:
    """The words in place of the name where a stall is worth avoiding, but does not bound the step; else None."""
    if verdict.name != "COMPUTE-BOUND" or verdict.stall is None:
        return None
    most = (facts.summary.share("compute") or 0.0) >= 0.5
    what = "mostly computing" if most else "computing is the largest part"
    return f"{what}; the largest avoidable stall is {verdict.stall}, {percent(verdict.share or 0.0)}"


def advise(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    """The reason for the verdict and what to do next: `(why, next)`."""
    why, action = _undecided(verdict, facts) if verdict.name == "UNDECIDED" else _decided(verdict, facts)
    return f"{why}{_waits(facts)}", action


def _decided(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    if verdict.stall is None:
        return _launches(facts) if verdict.name == "LAUNCH-BOUND" else _compute(facts)
    rules = {
        "data": _data,
        "h2d": _h2d,
        "straggler": _straggler,
        "bubble": lambda verdict, facts: (why_bubble(facts), less_bubble(facts)),
        "rollout": _rollout,
        "other": _other,
    }
    rule = rules.get(verdict.stall, _communication if verdict.stall in ("comm", *COMM_PARTS) else _without_rule)
    return rule(verdict, facts)


def _undecided(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    if verdict.reason == "few_steps":
        return "too few steady steps for a verdict", _more_steps("for at least 30 steps", facts)
    if verdict.reason == "comm_unmeasured":
        share = percent(verdict.share or 0.0)
        why = f"communication between the ranks was not measured: it is in the {share} of compute and other"
        doctor = "" if facts.imported else "; ddlprof doctor says what can be measured here"
        return why, f"see the notes for the reason{doctor}"
    if verdict.reason == "device_unmeasured":
        why = f"the steps were timed on the training thread, which runs ahead of the device ({facts.device})"
        return why, "see the notes; ddlprof doctor says what can be measured on such a device"
    stall = _NAMES.get(verdict.stall or "", verdict.stall)
    share = percent(verdict.share or 0.0)
    if verdict.reason == "looking":
        cost = percent(1e9 * (facts.overhead_s or 0.0) / (facts.summary.mean_ns("step") or 1.0))
        why = f"{stall} is {share} of the step, but the profiler's overhead is {cost}"
        return why, "use larger batches, to make steps longer"
    action = free_processors(facts) if facts.starved else _more_steps("for more steps", facts)
    return f"{stall} is {share} of the step, but varies too much to be sure", action


def _more_steps(how_long: str, facts: Facts) -> str:
    if facts.imported:
        return f"let torch.profiler record {how_long} (active of its schedule, step() after each) and import that"
    return f"let it train {how_long}"


def _compute(facts: Facts) -> tuple[str, str]:
    stalls = stall_means(facts.summary)
    largest = max(stalls, key=lambda name: stalls[name], default=None)
    why = f"computing takes {percent(facts.summary.share('compute') or 0.0)} of the step"
    if largest is not None and stalls[largest] > 0:
        step = facts.summary.mean_ns("step") or 1.0
        why += f", the largest stall is {_NAMES.get(largest, largest)} with {percent(stalls[largest] / step)}"
    if facts.starved:
        return why, free_processors(facts)
    if facts.device == "cpu":
        return _compute_on_cpu(why, facts)
    return why, either(
        "mixed precision (torch.autocast)" if facts.training.precision in ("fp32", "tf32") else None,
        "torch.compile" if facts.model.compiled is False else None,
        _faster("a faster device", facts),
    )


def _faster(what: str, facts: Facts) -> str:
    """Words for a faster machine, and for what was looked at before it."""
    return what + _looked("nothing cheaper was found", facts)


def _alone(action: str, facts: Facts) -> str:
    """The action, where no finding stands beside it; of other work that it is to end, that nothing else was found."""
    return action + _looked("nothing else was found", facts) if action == free_processors(facts) else action


def _looked(found: str, facts: Facts) -> str:
    """Words for what was looked at in vain, in brackets; empty if that is nothing."""
    looked = [
        name
        for name, known in (
            ("threads", facts.device == "cpu" and facts.host.busy_cores_per_rank is not None),
            ("precision", facts.training.precision is not None),
            ("padding", facts.training.padding_share is not None),
            ("the optimizer", facts.training.optimizer_loops is not None),
            ("anomaly mode", facts.training.anomaly_share is not None),
            ("loops in Python", facts.computing.samples >= LINE_SAMPLES),
        )
        if known
    ]
    return f" ({found}; looked at: {', '.join(looked)})" if looked else ""


def _launches(facts: Facts) -> tuple[str, str]:
    why = f"computing takes {percent(facts.summary.share('compute') or 0.0)} of the step, but {waiting_device(facts)}"
    return why, free_processors(facts) if facts.starved else launch_less(facts)


def _compute_on_cpu(why: str, facts: Facts) -> tuple[str, str]:
    busy, cores = facts.host.busy_cores_per_rank, facts.host.cores_per_rank
    if busy is not None and busy < THREAD_BUSY_SHARE:
        why += f"; but the processors are busy with {percent(busy)} of one thread a rank, so most of it is waiting"
        return why, "see what the script waits for between the forward pass and the update: a sleep, a file, a process"
    if busy is not None and cores is not None and cores > 1 and busy < FREE_CPU_PERCENT / 100 * cores:
        why += f"; it keeps {busy:.1f} of {count(cores, 'core')} a rank busy"
        return why, "more threads (torch.set_num_threads, OMP_NUM_THREADS), larger batches, or an accelerator"
    return why, _faster("a faster machine, or an accelerator", facts)


def _data(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"the loop waits {facts.mean('data')} a step for its batches"
    fetch, prep = facts.summary.mean_ns("data_fetch"), facts.summary.mean_ns("data_prep")
    if verdict.cause == "fetch":
        why += f", {facts.mean('data_fetch')} of it blocked on storage or network"
    elif verdict.cause == "prep":
        why += f", {facts.mean('data_prep')} of it preparing samples (decode, transform, collate)"
    elif (handed := handed_s(facts)) is not None:
        why += f", {facts.scale.time(handed)} of it after they were made, until they are handed over"
    elif fetch is not None and prep is not None:
        why += f" ({facts.mean('data_fetch')} fetching, {facts.mean('data_prep')} preparing)"
    iterators = new_iterators(facts)  # of what each of them does over again, batches handed over are a part
    return why, more_workers(facts) if iterators is None else iterators.next


def _h2d(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"computing waits {facts.mean('h2d')} a step for copies to the device"
    return why, sooner_copies(facts)


def _straggler(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"ranks wait {facts.mean('straggler')} a step for a later rank"
    late = facts.late_rank
    if late is None:
        why += ", not always the same"
        if (uneven := uneven_input(facts)) is not None:
            return f"{why}: {uneven.evidence.partition(';')[0]}", help_late_rank(facts)
        if facts.device == "cpu" and not facts.starved and (facts.host.cpu_percent or 0.0) >= BUSY_CPU_PERCENT:
            busy = f"the ranks compete for the cores ({facts.host.cpu_percent:.0f} % busy)"
            return why, f"{busy}: fewer ranks, threads (OMP_NUM_THREADS) or loader workers on this machine"
        return why, help_late_rank(facts)
    why += f", mostly for rank {late.rank}" + (f" in {late.when}" if late.phases else "")
    if late.queued_share is not None:
        why += f", which waits {percent(late.queued_share)} of its time for a processor"
    elif late.cause is not None:
        why += f": it spends more on {_NAMES.get(late.cause, late.cause)}"
    return why, help_late_rank(facts)


def _communication(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    stall = verdict.stall or "comm"
    seconds = (verdict.share or 0.0) * (facts.summary.mean_ns("step") or 0.0) / 1e9
    where = {"interconnect": " inside the machine", "network": " between machines"}.get(stall, "")
    why = f"computing waits {facts.scale.time(seconds)} a step for communication{where}"
    comm = facts.comm
    if comm is not None:
        why += f": {' and '.join(comm.ops[:2])}"
        # The script waits longer than its collectives take where it copies, or waits without a collective.
        if comm.duration_ns / 1e9 > seconds:
            why += f" take{'s' if len(comm.ops) == 1 else ''} {facts.scale.time(comm.duration_ns / 1e9)} in all"
        why += f", {significant(comm.bus_gb_s, 2)} GB/s bus bandwidth" if comm.bus_gb_s else ""
    return why, less_communication(facts)


def _rollout(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    line, other_s, rollout_s = main_line(facts), facts.mean_s("other"), facts.mean_s("rollout")
    if line is None or line.place.what in _OF_ROLLOUT or 2 * line.share * (other_s or 0.0) < (rollout_s or 0.0):
        acts = f"the model acts or generates for {facts.mean('rollout')} of a step"
        return f"{acts}, before it is trained on what came of it", LESS_ROLLOUT
    where, action = words_for_line(facts, line)
    why = f"{facts.mean('rollout')} of a step pass from where the model acts or generates to where it is trained"
    return f"{why}; {percent(line.share)} of {facts.mean('other')} outside computing are {where}", action


def _without_rule(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    """The words for a class that has no advice of its own."""
    stall = verdict.stall or ""
    return f"{_NAMES.get(stall, stall)} takes {facts.mean(stall)} of a step", "see what in the loop it comes from"


def _other(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    outside = "computing, data and communication"
    if facts.summary.mean_ns("data") is None:
        outside = "computing and communication, the loop's own loading of batches included"
    why = f"{facts.mean('other')} of a step is outside {outside}"
    line = main_line(facts)
    if facts.imported and facts.devices.window is not None and facts.devices.window.idle_share > WARN_SHARE:
        return f"{why}: the device has nothing to do", f"see in the trace what the host does then; {launch_less(facts)}"
    if line is None:
        return why, "look at what the loop does between the batch and the forward pass, and after the update"
    where, action = words_for_line(facts, line)
    return f"{why}, {percent(line.share)} of it {where}", action
