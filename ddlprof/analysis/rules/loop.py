"""Rules about the training loop: lines of the script that the step waits for, evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddlprof.analysis.issued import Issued
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.line_advice import AT_ANY_LINE, BETWEEN, ONCE_FOR_ALL, main_line, words_for_line
from ddlprof.analysis.rules.own_communication import GATHER_LESS, many_messages, sent_objects
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.rules.switches import passes_s, python_counts
from ddlprof.analysis.sources import MORE_THAN_A_LINE, TIMED, SourceShare, function_of, number_of
from ddlprof.analysis.thresholds import (
    ANOMALY_SHARE,
    BOUND_SHARE,
    EVALUATED_FEWER,
    FINDING_STEPS,
    FORWARD_ALONE,
    JOB_EVENTS,
    LINE_OF_STEP_SHARE,
    LINE_SAMPLES,
    LINE_SHARE,
    NEW_OPTIMIZERS_SHARE,
    SEEN_SAMPLES,
    WARN_SHARE,
)
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.base.units import count, percent, scale_for
from ddlprof.model import source_locations
from ddlprof.model.issuers import OBJECTS, OF_SCRIPT
from ddlprof.model.source_locations import SourceLocation

_COLLECTED = 0.5
"""Of the time at a line: then most of it may be the garbage collector's."""
_PARTS = (
    "save less often; where one rank collects the states of all (consolidate_state_dict, a full state dict), each its "
    "own part instead, and in the background: torch.distributed.checkpoint.async_save"
)

_PART_OF_IT = "that saves a part of it: how much, a run with it tells"
_SEND_LESS = "less often, or several values in one call"
"""Advice for a line that is also one whose collectives the run knows."""
_COSTLY = (
    source_locations.DECOMPOSES, source_locations.DERIVES, source_locations.DERIVES_EACH, source_locations.ONE_HOT,
)  # fmt: skip
"""The kinds of work in forwards and losses that `costly_line` speaks of."""
_BUFFER = (
    "if it needs nothing of the batch but its sizes, as a mask, positions or a table do: make it once, as a buffer of "
    "the longest (register_buffer), and take the part that a batch needs (mask[:t, :t]); attention with is_causal=True "
    "needs no mask"
)
_FORWARD_ALONE = (source_locations.LOGGING, source_locations.PLOT, source_locations.ONE_HOT)
"""Those that backward does not go through."""
_OWN_RULES = (
    source_locations.RESULT,
    source_locations.LOGGING,
    source_locations.PLOT,
    source_locations.METRIC,
    source_locations.COPY,
    source_locations.COLLECT,
)
"""The kinds of work that have a rule of their own."""


def result_waits(facts: Facts) -> Issue | None:
    """Finds a line that waits for a result of the device."""
    return _line(facts, "the loop waits for results", source_locations.RESULT)


def logging(facts: Facts) -> Issue | None:
    """Finds a line whose logging takes time."""
    title, what = "the loop waits for its logging", source_locations.LOGGING
    return _line(facts, title, what) or _line_of_passes(facts, title, what)


def plots(facts: Facts) -> Issue | None:
    """Finds a line that draws."""
    title, what = "the loop waits for its plots", source_locations.PLOT
    return _line(facts, title, what) or _line_of_passes(facts, title, what)


def metrics(facts: Facts) -> Issue | None:
    """Finds a line that computes a metric."""
    return _line(facts, "the loop waits for its metrics", source_locations.METRIC)


def copies(facts: Facts) -> Issue | None:
    """Finds a line that copies the model's state or other objects."""
    return _line(facts, "the loop copies states", source_locations.COPY)


def slow_line(facts: Facts) -> Issue | None:
    """Finds any other line that takes much of a step."""
    line = main_line(facts)
    if line is None or line.place.what in _OWN_RULES:
        return None
    issue = _line(facts, "the loop waits at one line", line.place.what)
    issued = facts.issued.of(*OF_SCRIPT)
    sends = [each for each in issued if _is_at(line, each.place)]
    used = [each for each in issued if _comes_after(line, each.place)]
    if any(each.place.what == OBJECTS for each in sends) and sent_objects(facts) is not None:
        return None
    if sends and many_messages(facts) is not None:
        return None
    if issue is not None and sends:
        issue = replace(issue, title="the loop waits at a line that communicates", next=_send_less(sends))
    elif issue is not None and used:
        waits = f"if it waits for what is sent at {used[0].place.text}: {_send_less(used)}"
        issue = replace(issue, next=f"{issue.next}; {waits}")
    collected = issue is not None and facts.collector_s >= _COLLECTED * (issue.gain_s or 0.0)
    return None if collected else issue  # the collector runs at whichever line makes objects


def _is_at(line: SourceShare, place: SourceLocation) -> bool:
    """Whether a collective is issued at the line, or is called from there."""
    return line.place.text in (place.text, place.caller)


def _comes_after(line: SourceShare, place: SourceLocation) -> bool:
    """Whether the line, of which nothing is known, follows a collective in a helper, and may use what came of it."""
    if line.place.what or not place.caller or function_of(line.place.text) != function_of(place.text):
        return False
    here, there = number_of(line.place.text), number_of(place.text)
    return here is not None and there is not None and here >= there


def _send_less(sends: Sequence[Issued]) -> str:
    return f"{_SEND_LESS}; {GATHER_LESS}" if any("gather" in each.op for each in sends) else _SEND_LESS


def parametrized(facts: Facts) -> Issue | None:
    """Finds weights that a parametrization of torch's computes anew in a loop."""
    return _line_of_passes(facts, "weights are computed anew at each access", source_locations.PARAMETRIZED)


def costly_line(facts: Facts) -> Issue | None:
    """Finds a line of forward or loss that decomposes matrices, makes one-hot vectors, or computes gradients.

    As it is known what is costly there, it needs no place with a third of the time: all lines of a kind count together.
    """
    title = "much of forward and loss is at one costly line"
    for what in _COSTLY:
        issue = _line_of_passes(facts, title, what, wider=True) or _lines_of_passes(facts, title, what)
        if issue is not None:  # the training may be about just that, and each gradient of a loop need the one before
            doubtful = what == source_locations.DERIVES_EACH or (issue.share or 0.0) < WARN_SHARE
            return replace(issue, severity="info" if doubtful else "warning")
    return None


def constants(facts: Facts) -> Issue | None:
    """Finds lines of forward or loss that make tensors of sizes alone, together: whichever it is, it can go."""
    lines, samples = facts.computing.shares, facts.computing.samples
    made = [(part, each.place.text) for each in lines if (part := each.of(source_locations.CONSTANT))]
    share, step, forward = sum(part for part, _ in made), facts.mean_s("step"), facts.mean_s("compute_forward")
    if not made or not step or not forward or not python_counts(facts):
        return None
    if lowest_share(share * samples, samples) * forward < LINE_OF_STEP_SHARE * step:
        return None
    evidence = f"{percent(share)} of {facts.scale.time(forward)} in forward and loss make tensors of sizes alone"
    evidence += f", at {max(made)[1]} (of {samples} stack samples)"
    warns = share * forward >= WARN_SHARE * step  # never critical: some of it may depend on the batch after all
    return Issue("what needs no batch is made in each forward", evidence, _BUFFER, samples, share * forward / step,
                 gain_s=share * forward, about="compute", severity="warning" if warns else "info")  # fmt: skip


def forward_alone(facts: Facts) -> Issue | None:
    """Finds a line of forward or loss with so much of them that backward cannot go through what it does."""
    line = facts.computing.unknown
    step, forward, backward = (facts.mean_s(name) for name in ("step", "compute_forward", "compute_backward"))
    if line is None or not step or forward is None or backward is None or not python_counts(facts):
        return None
    if line.place.what == source_locations.MODULE:  # whose weights are trained, so that it is in the graph
        return None
    gain = line.share * forward - backward
    if any(each.beside for each in facts.slowing):  # which `slowing_steps` is about
        return None
    if facts.model.frozen is not False:  # what is not trained has no backward
        return None
    watched = facts.training.interpreter_hook or facts.training.debug_modes
    if watched or (facts.training.anomaly_share or 0.0) >= ANOMALY_SHARE:  # which slow down forward alone
        return None
    if facts.model.compiled or forward < FORWARD_ALONE * backward or gain < WARN_SHARE * step:
        return None
    evidence = (
        f"{percent(line.share)} of {facts.scale.time(forward)} in forward and loss is at {line.place.text} (of "
        f"{facts.computing.samples} stack samples); backward takes {facts.scale.time(backward)}, so it does not go "
        "through most of this"
    )
    action = (
        "see what needs no gradients there: what is the same in each step is made once (register_buffer); the nearest "
        "of all pairs by a product of matrices (x @ y.t() and the squares, torch.cdist) in place of a difference with "
        "all pairs in it; numpy and Python as tensors"
    )
    return Issue("much of forward is at a line that backward does not go through", evidence, action,
                 facts.steady_steps, gain / step, gain_s=gain, about="compute")  # fmt: skip


def new_optimizers(facts: Facts) -> Issue | None:
    """Finds a loop that makes an optimizer for each of its updates."""
    share = facts.training.new_optimizers
    if share is None or share < NEW_OPTIMIZERS_SHARE or facts.training.calls_again:
        return None
    evidence = (
        f"{percent(share)} of all updates are the first one of an optimizer of the same parameters: momentum, moments "
        "and the schedule of the learning rate begin anew in each of them, so that it trains otherwise than asked for"
    )
    return Issue("an optimizer is made for each update", evidence,
                 "make the optimizer and its scheduler once, before the loop", facts.steady_steps,
                 severity="warning")  # fmt: skip


def _line_of_passes(facts: Facts, title: str, what: str, wider: bool = False) -> Issue | None:
    """Finds such a line in forwards and losses: a hook of a package, or what backward goes through too. `wider`: or the
    function around it, if half of its time or more is of this kind."""
    of_kind = sum(each.of(what) for each in facts.computing.shares)
    around = [each for each in facts.computing.wider if wider and 2 * of_kind >= each.share]
    places = [*facts.computing.shares, *around]
    line = next((each for each in places if each.sure and each.place.what == what), None)
    return _at_line_of_passes(facts, title, line, line.share if line is not None else 0.0)


def _lines_of_passes(facts: Facts, title: str, what: str) -> Issue | None:
    """Finds all such lines together, told at the one with most of it."""
    samples = facts.computing.samples
    parts = ((_part_of_line(each, what, samples), each.place.text) for each in facts.computing.shares)
    places = [(part, text) for part, text in parts if part]
    share = sum(part for part, _ in places)
    line = SourceShare(SourceLocation(max(places)[1], what), share, sure=False) if places else None
    return _at_line_of_passes(facts, title, line, lowest_share(share * samples, samples))


def _part_of_line(line: SourceShare, what: str, samples: int) -> float:
    """The part of a line that is of this kind; a module that a line calls to derive it is there for nothing else."""
    part, module = line.of(what), line.of(source_locations.MODULE)
    derives = what in (source_locations.DERIVES, source_locations.DERIVES_EACH)
    return part + module if derives and round(part * samples) >= SEEN_SAMPLES else part


def _at_line_of_passes(facts: Facts, title: str, line: SourceShare | None, least: float) -> Issue | None:
    """The issue of a line in forwards and losses, if its share of them is at least `least` for certain."""
    step, forward, what = facts.mean_s("step"), facts.mean_s("compute_forward"), line.place.what if line else ""
    if forward is None and what == source_locations.DERIVES_EACH:  # without a backward, parts are not told apart
        forward = passes_s(facts)
    if line is None or not step or forward is None or not python_counts(facts):
        return None
    seconds = forward if what in _FORWARD_ALONE else passes_s(facts)
    gain = line.share * seconds
    if least * seconds < LINE_OF_STEP_SHARE * step:
        return None
    where, action = words_for_line(facts, line)
    evidence = f"{percent(line.share)} of {facts.scale.time(forward)} in forward and loss is {where}"
    evidence += f" (of {facts.computing.samples} stack samples)"
    return Issue(title, evidence, action, facts.computing.samples, gain / step, gain_s=gain, about="compute")


def _line(facts: Facts, title: str, what: str) -> Issue | None:
    """Finds such a line in `other`."""
    line, other, seconds = main_line(facts), facts.summary.share("other"), facts.mean_s("other")
    if line is None or other is None or seconds is None or line.place.what != what:
        return None
    share = other * line.share
    if share < LINE_OF_STEP_SHARE:
        return None
    where, action = words_for_line(facts, line)
    samples = facts.sources.samples
    evidence = f"{percent(line.share)} of {facts.mean('other')} outside computing, data and communication is {where}"
    evidence += f" (of {samples} stack samples)"
    return Issue(title, evidence, action, samples, share, gain_s=seconds * line.share, about="other")


def evaluation_share(facts: Facts) -> Issue | None:
    """Finds a job that spends much of its time evaluating."""
    job, action = facts.job, AT_ANY_LINE[source_locations.EVALUATION][1]
    once = job is not None and job.evaluations == 1
    if once:
        action = "evaluate on fewer batches, or in another process"
    larger, graded = _larger_evaluations(facts), bool(facts.training.evaluates_with_gradients)
    action += larger
    if graded:
        action = f"with torch.no_grad(): around it, as nothing uses its graphs ({_PART_OF_IT}); {action}"
    title, alone = "the job spends much of its time evaluating", facts.lone_evaluator
    if alone is not None:
        title = f"the job waits while rank {alone} alone evaluates"
        action = f"each rank a part of it (DistributedSampler), and one all_reduce of the results; {action}"
    issue = _part_of_job(facts, "evaluation", title, action)
    if issue is not None and job is not None and once:  # it may be the only one of the longest training, as at its end
        large = (issue.share or 0.0) >= BOUND_SHARE and job.trains_on
        issue = replace(issue, severity="warning") if large else None
    line = next((each for each in facts.evaluating.shares if each.sure and not _is_timed(each.place)), None)
    if issue is None or line is None:  # each rank a part, or another line, saves more than that part
        return issue and replace(issue, saves_part=alone is None and (graded or larger != ""))
    where, action = words_for_line(facts, line)
    evidence = f"{issue.evidence}; {percent(line.share)} of {facts.evaluating.samples} stack samples then are {where}"
    return replace(issue, evidence=evidence, next=f"{BETWEEN.get(line.place.what, action)}; {issue.next}")


def _larger_evaluations(facts: Facts) -> str:
    """Words for larger batches of an evaluation whose forwards take far fewer samples than those of the training; empty
    if they do not, or if they may choose actions: there is an environment, or no loader that could make larger ones."""
    few, batch = facts.training.evaluated_samples, facts.training.batch_per_rank
    acts = any(each.of(source_locations.ENVIRONMENT) > 0 for each in facts.evaluating.shares)
    if not few or not batch or EVALUATED_FEWER * few > batch or acts or facts.mean_s("data") is None:
        return ""
    return (
        "; where samples are of one size, and no larger than those of the training: in larger batches (a forward takes "
        f"{count(few, 'sample')}, one of the training {batch:,})"
    )


def _is_timed(place: SourceLocation) -> bool:
    """Whether it is a forward of the evaluation itself, or a batch for it."""
    return place.is_of_data or place.what in TIMED


def between_steps(facts: Facts) -> Issue | None:
    """Finds a line of the script at which the job stands still between its steps, such as a metric of a validation."""
    job, main = facts.job, facts.between.main
    seconds = job.parts_s["idle"] if job is not None else None
    if job is None or main is None or not seconds or job.wall_s <= 0:
        return None
    line = next((each for each in facts.between.wider if each.share >= MORE_THAN_A_LINE * main.share), main)
    inside = sum(job.parts_s[part] or 0.0 for part in ("evaluation", "checkpoint"))  # all of it may be at the line
    share = (line.share * seconds - (1 - line.share) * inside) / job.wall_s
    times = max(job.evaluations or 0, job.checkpoints or 0, job.epochs or 0, job.later_phases)
    if share < WARN_SHARE:
        return None
    where, of_steps = words_for_line(facts, line)[0], AT_ANY_LINE.get(line.place.what, AT_ANY_LINE[""])[1]
    action = BETWEEN.get(line.place.what, of_steps)
    if 2 * job.before_phases_s > seconds:
        action = f"{ONCE_FOR_ALL}; otherwise {action}"
    whole = f"{scale_for(seconds).time(seconds)} of {scale_for(job.wall_s).time(job.wall_s)}"
    evidence = f"{whole} are beside the steps, where the script evaluates, saves, or begins an epoch"
    evidence += " or another phase (a fold, a trial); " if job.later_phases else "; "
    evidence += f"{percent(line.share)} of {facts.between.samples} stack samples then are {where}"
    return Issue("the job stands still between its steps", evidence, action, times, share, of="job")


def after_checkpoints(facts: Facts) -> Issue | None:
    """Finds a rank that goes on working after it has written a checkpoint, while the others wait."""
    found, job = facts.after_saves, facts.job
    if found is None or job is None or job.wall_s <= 0:
        return None
    share = found.number * found.seconds / job.wall_s
    if share < WARN_SHARE or found.seconds < found.written_s:  # else `checkpoint_share` says what matters
        return None
    scale = scale_for(found.seconds)
    evidence = f"{found.number} steps with a checkpoint take {scale.time(found.seconds)} longer beside "
    evidence += f"{scale.time(found.written_s)} of writing"
    evidence += f", mostly at {found.line.text}" if found.line is not None else ""
    if found.writer is not None:
        return Issue(f"all ranks wait for what rank {found.rank} does for the checkpoints of rank {found.writer}",
                     evidence, _PARTS, found.number, share, of="job", ranks=(found.rank,))  # fmt: skip
    action = "go on training meanwhile: copy or upload the file in a thread (concurrent.futures.ThreadPoolExecutor)"
    if facts.world_size == 1:
        return Issue("steps go on long after their checkpoint is written", evidence, action, found.number, share,
                     of="job")  # fmt: skip
    return Issue(f"all ranks wait for what rank {found.rank} does after its checkpoints", evidence,
                 f"{action}, and let ranks wait (barrier) only before one of them reads it", found.number, share,
                 of="job", ranks=(found.rank,))  # fmt: skip


def checkpoint_share(facts: Facts) -> Issue | None:
    """Finds a job that spends much of its time saving."""
    if after_checkpoints(facts) is not None:
        return None
    return _part_of_job(facts, "checkpoint", "the job spends much of its time saving",
                        "save less often, or in the background (torch.distributed.checkpoint.async_save)")  # fmt: skip


def _part_of_job(facts: Facts, part: str, title: str, action: str) -> Issue | None:
    job = facts.job
    share = job.share(part) if job is not None else None
    if job is None or share is None or share < WARN_SHARE:
        return None
    times: int | None = getattr(job, f"{part}s")
    seconds, wall = job.parts_s[part] or 0.0, job.wall_s
    often = count(times, part) if times is not None else f"{part}s"
    evidence = f"{often}: {scale_for(seconds).time(seconds)} of {scale_for(wall).time(wall)}"
    return Issue(title, evidence, action, JOB_EVENTS if times is None else times, share, of="job")


_LINE = (
    f"{percent(LINE_OF_STEP_SHARE)} of the step, at a line (else in a function, else from a line of the training loop) "
    "with a third of the stack samples of `other` for certain"
)
_IN_PASSES = (
    f"{_LINE}; or with as many of forwards and losses, on a job that trains on processors or waits for launches"
)
_LINE_REASON = "a line is changed in minutes; with more than a third no two other lines are as large"
_NO_SAMPLES = f"fewer than {LINE_SAMPLES} stack samples were taken, or no line has {percent(LINE_SHARE)} for certain"
_JOB_REASON = "less is not worth a day of anybody's work; a single one is no habit"

RULES = (
    Rule("result_waits", "A line waits for a result of the device (`.item()`)", _LINE, _LINE_REASON, LINE_SAMPLES,
         _NO_SAMPLES, result_waits),
    Rule("logging", "The step waits for its logging", _IN_PASSES, _LINE_REASON, LINE_SAMPLES, _NO_SAMPLES, logging),
    Rule("plots", "The step waits for its plots", _IN_PASSES, _LINE_REASON, LINE_SAMPLES, _NO_SAMPLES, plots),
    Rule("metrics", "The step waits for its metrics", _LINE, _LINE_REASON, LINE_SAMPLES, _NO_SAMPLES, metrics),
    Rule("copies", "The step copies states of the model", _LINE, _LINE_REASON, LINE_SAMPLES, _NO_SAMPLES, copies),
    Rule("slow_line", "The step waits at another line of the script", _LINE, _LINE_REASON, LINE_SAMPLES,
         f"{_NO_SAMPLES}, or `sent_objects` or `many_messages` speaks of it", slow_line),
    Rule("parametrized", "Weights are computed anew at each access",
         f"{percent(LINE_OF_STEP_SHARE)} of the step, at a line in a loop for which a parametrization of torch's "
         "computes a weight, with a third of the stack samples of forwards and losses for certain", _LINE_REASON,
         LINE_SAMPLES, f"{_NO_SAMPLES}, the device has enough to do, or weights are cached", parametrized),
    Rule("costly_line", "A line of forward or loss decomposes matrices, makes one-hot vectors or computes gradients",
         f"{percent(LINE_OF_STEP_SHARE)} of the step, at such a line with a third of the stack samples of forwards and "
         "losses for certain, or else for certain at all such lines", "it is known what is costly there; never more "
         "than a warning, since the training may be about just that; an info for "
         "gradients in a loop, as each may need the one before", LINE_SAMPLES,
         f"fewer than {LINE_SAMPLES} stack samples were taken, or the device has enough to do", costly_line),
    Rule("constants", "Forward makes tensors of sizes alone, such as masks, again and again",
         f"{percent(LINE_OF_STEP_SHARE)} of the step for certain, by the stack samples of forwards and losses at lines "
         "that call `torch.ones`, `arange`, `triu`, ...", "a line is changed in minutes, and all of them can go; never "
         "more than a warning, since some may depend on the batch", LINE_SAMPLES,
         f"fewer than {LINE_SAMPLES} stack samples were taken, or the device has enough to do", constants),
    Rule("forward_alone", "Much of forward or loss is at a line that backward does not go through",
         f"{percent(WARN_SHARE)} of the step to gain, by what a line with a third of the stack samples of forwards and "
         f"losses for certain takes longer than all of backward, where these take {FORWARD_ALONE:.0f} times as long as "
         "it", "backward goes through what forward computes, and takes longer, unless it has no gradients",
         LINE_SAMPLES, "it is known what the line does, it calls a module of a package, or it is a loop "
         "(`costly_line`, `python_loop`), the model is compiled, has frozen parameters or learns from a teacher, a "
         "debugger, a profiler or anomaly mode is on, or the device has enough to do", forward_alone),
    Rule("new_optimizers", "The loop makes an optimizer for each update",
         f"{percent(NEW_OPTIMIZERS_SHARE)} of all updates are the first of an optimizer with the parameters of the one "
         "before it, and with momentum or moments", "an inner loop that begins anew has several updates", FINDING_STEPS,
         "the optimizer is none of torch's, or calls a closure", new_optimizers, hides=True),
    Rule("between_steps", "The job stands still between its steps at a line of the script",
         f"{percent(WARN_SHARE)} of the job's wall time, in steps with an evaluation, a checkpoint or the begin of an "
         "epoch or another phase beyond these and what other steps take, at a line (else in a function, else from a "
         "line of the loop) with a third of the stack samples then for certain", _JOB_REASON, JOB_EVENTS,
         f"fewer than {LINE_SAMPLES} stack samples were taken then, no line has {percent(LINE_SHARE)} for certain, or "
         "evaluations and checkpoints take so long that all of it may be in them",
         between_steps),
    Rule("evaluation_share", "Evaluation takes much of the job",
         f"{percent(WARN_SHARE)} of the job's wall time, a single one {percent(BOUND_SHARE)} and steps after it",
         "less is not worth a day of anybody's work; a single one may be the only one of the longest training, and is "
         "never more than a warning", 1, "the job's wall time is not known", evaluation_share),
    Rule("after_checkpoints", "A rank goes on working after its checkpoint is written, and the others wait",
         f"{percent(WARN_SHARE)} of the job's wall time, by what steps with a checkpoint take longer beside "
         "the writing, if that is longer than the writing", _JOB_REASON, JOB_EVENTS,
         "other ranks do not wait for it, or stack samples show an evaluation, a forward or logging there",
         after_checkpoints),
    Rule("checkpoint_share", "Checkpoints take much of the job", f"{percent(WARN_SHARE)} of the job's wall time",
         _JOB_REASON, JOB_EVENTS, "the job's wall time is not known, or `after_checkpoints` speaks", checkpoint_share),
)  # fmt: skip
