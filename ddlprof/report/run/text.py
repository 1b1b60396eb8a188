"""The card: a report as a few lines of plain text. Renders a `ReportData` and decides only what is worth a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddlprof.analysis.findings import Finding
from ddlprof.analysis.hang_words import advice, headline, label
from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.late_rank import part_words, phase_words
from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, ago, count, gib, long_time, percent, ranges, scale_for, significant
from ddlprof.model.classes import TABLE
from ddlprof.model.dimensions import UNKNOWN_SHOWN
from ddlprof.model.manifest import IMPORTED
from ddlprof.model.records import GOOD_ENDS, LEFT_OUT, NO_BACKWARD, NO_TORCH, NONE_THAT_STEPPED
from ddlprof.report.run.data import RankLine, ReportData
from ddlprof.report.run.energy import energy_text
from ddlprof.report.run.experts import experts_text
from ddlprof.report.run.loss import LossLine
from ddlprof.report.run.pipeline import pipeline_text
from ddlprof.report.run.rates import rates_text

OTHER_SHARE = 0.05  # of the step: a smaller `other` gets no line
OTHER_LINES = 3
FINDINGS = 3  # the other formats have more
WORTH_SHARE = 0.01  # of the step: a smaller gain is not worth a word
LEAST_OF_COMM = 0.005  # of the step: the card rounds a smaller part of communication to 0 %
STOPPED_LINES = 4
CLOCK_OFFSET_S, CLOCK_BOUND_S = 10e-3, 1e-3  # smaller ones are normal with time synchronisation
STILL_RUNNING_S = 10.0  # counters are written about once a second
_CAUSES = {each.name: each.own_words for each in TABLE}

_LABEL_WIDTH = 9


_NO_STEPS = {
    NO_TORCH: "profile a script that trains with PyTorch; the processes that it starts have to inherit its environment",
    NO_BACKWARD: "call backward() on the loss, or update by a torch.optim optimizer: gradients of torch.func and of "
    "torch.autograd.grad end no step",
    NONE_THAT_STEPPED: "name one of those, or leave --step-optimizer out: the one that ends the steps is found",
}
"""How to get steps, by the reason why there is none."""


def render(report: ReportData) -> str:
    """The card, ending with a line end."""
    return text_of(f"{label:<{_LABEL_WIDTH}}{text}" for label, text in lines(report))


def lines(report: ReportData) -> Iterator[tuple[str, str]]:
    """The lines of the card: a label and a text each."""
    yield "ddlprof", " · ".join(_head(report))
    if report.layout and " x " in report.layout:  # else the strategy says it all
        yield "Layout", report.layout
    if report.hang is not None:
        yield label(report.hang), f"{headline(report.hang)}; {advice(report.hang)}"
    step = report.step_s
    if step is None:
        yield from _nothing(report)
    else:
        scale = scale_for(step)
        yield "Step", _step(report, scale)
        if report.phases:
            from ddlprof.report.run.phases import phase_lines  # not at the top: few trainings have several

            yield from phase_lines(report.phases, report.phase, report.run)
        if by_dimension := _by_dimension(report):
            yield "Comm", by_dimension
        if report.pipeline is not None:
            yield "Pipeline", pipeline_text(report.pipeline, report.times["bubble"].mean_s, scale)
        if report.experts is not None and (experts := experts_text(report.experts)):
            yield "Experts", experts
        if rates := rates_text(report.rates, report.device == "cpu"):
            yield "Rates", rates
        if report.energy is not None:
            yield "Energy", energy_text(report.energy)
        yield from _outliers(report, scale)
        yield from _verdict(report, scale)
        yield from _findings(report, scale)
        yield from _other(report)
    if report.job is not None and (job := job_line(report.job)):
        yield "Job", job
    if report.goodput is not None:
        from ddlprof.report.goodput.text import card_lines  # not at the top: few runs have several attempts

        yield from card_lines(report.goodput)
    if report.loss is not None and (loss := loss_text(report.loss)):
        yield "Loss", loss
    yield from _stopped(report)
    if clocks := _clocks(report):
        yield "Clocks", clocks
    if context := _context(report):
        yield "Context", context
    if memory := _peak_memory(report):
        yield "Memory", memory
    if overhead := _overhead(report):
        yield "Overhead", overhead
    for note in report.notes:
        if not any(cause in note for cause in _NO_STEPS):
            yield "Note", note
    page = f"    next: ddlprof report {report.run} --format html -o page.html" if step is not None else ""
    yield "Files", report.run + page


def _head(report: ReportData) -> Iterator[str]:
    yield report.name + (f" ({report.model})" if report.model else "")
    ranks = report.headline_ranks
    if ranks:
        per_node = max(len(ranks) // report.nodes, 1)
        # On the CPU a rank is a process, elsewhere a device.
        what = count(per_node, "process", "processes") if report.device == "cpu" else f"{per_node} {report.device}"
        yield f"{count(report.nodes, 'node')} x {what}"
    if report.strategy and report.strategy != "none":
        yield report.strategy.upper()
    if report.attempts > 1:
        yield f"attempt {report.attempt} of 0-{report.attempts - 1}"
    dropped = f" ({report.warmup_steps} warm-up dropped)" if report.warmup_steps else ""
    yield f"{count(report.steps, 'step')}{dropped}"
    if ranks:
        complete = sum(rank.complete for rank in ranks)
        yield f"{complete} of {count(report.world_size, 'rank')} complete"


def _step(report: ReportData, scale: Scale) -> str:
    """`318 ms mean (p95 371) = compute 171 + ...`: what adds up to the step, in the order of the classes."""
    times = report.times
    step = times["step"]
    terms: list[str] = []
    for each in TABLE:
        parts = {name: mean for name in each.part_names if (mean := times[name].mean_s) is not None}
        if each.adds_up and len(parts) == len(each.parts):
            terms += [f"{name} {scale.number(mean)}" for name, mean in parts.items() if mean]
        elif mean := times[each.name].mean_s:
            split = ", ".join(f"{each.short(name)} {scale.number(part)}" for name, part in parts.items())
            terms.append(f"{each.name} {scale.number(mean)}" + (f" ({split})" if any(parts.values()) else ""))
    p95 = f" (p95 {scale.number(step.p95_s)})" if step.p95_s is not None else ""
    return f"{scale.time(step.mean_s or 0.0)} mean{p95} = {' + '.join(terms)}"


def _by_dimension(report: ReportData) -> str:
    """`31 % of the step = tensor 18 + data 9 + expert 4`: only if there is more than one dimension."""
    shares = {line.dimension or UNKNOWN_SHOWN: line.share or 0.0 for line in report.dimensions}
    shown = sorted((name for name in shares if shares[name] >= LEAST_OF_COMM), key=lambda name: -shares[name])
    comm = report.times["comm"].share
    if len(shares) < 2 or not shown or comm is None:
        return ""
    return f"{percent(comm)} of the step = {' + '.join(f'{name} {100 * shares[name]:.0f}' for name in shown)}"


def _outliers(report: ReportData, scale: Scale) -> Iterator[tuple[str, str]]:
    found = report.outliers
    if found is None:
        return
    number, longest = len(found.steps), scale_for(found.longest_s).time(found.longest_s)
    took, them = (f"took {longest}", "it") if number == 1 else (f"took up to {longest}", "them")
    text = f"{count(number, 'step')} of {found.of_steps:,} {took}, mostly in {found.name} "
    text += f"({'step' if number == 1 else 'steps'} {ranges(found.steps)})"
    text += f": without {them} the mean is {scale.time(found.mean_without_s)}"
    yield "Outlier", text + (", which the verdict is about" if found.left_out else "")


def _verdict(report: ReportData, scale: Scale) -> Iterator[tuple[str, str]]:
    verdict = report.verdict
    if verdict is None:
        return
    here = len(report.headline_ranks)
    of = f"{here:,} of " if here < report.world_size else ""
    details = [f"{count(report.steady_steps, 'step')}, {of}{count(report.world_size, 'rank')}"]
    if verdict.queued_share is not None:
        details.insert(0, "on a shared machine")
    if verdict.share is not None and verdict.severity != "unknown":  # for unknown, `why` has the share
        concerned = f"{percent(verdict.share)} of the step" if verdict.headline is None else ""
        level = verdict.severity if verdict.severity in ("critical", "warning") else ""
        details.insert(0, ", ".join(part for part in (concerned, level) if part))
    yield "Verdict", f"{verdict.headline or verdict.name} ({'; '.join(details)})"
    yield "  why", verdict.why
    acted_on = next((finding for finding in report.findings if finding.rule == verdict.rule), None)
    yield "  next", verdict.next + (_gain(report, acted_on, scale) if acted_on is not None else "")
    late = report.late_rank
    if late is not None:
        share = percent(late.last_share)
        text = f"{late.rank} (node {late.node}): {share} of the time that ranks wait is for it"
        if late.cause is not None and late.own_s is not None and late.typical_s is not None:
            own, typical = scale.time(late.own_s), scale.time(late.typical_s)
            text += f"; its {_CAUSES[late.cause]} is {own}, the typical rank's {typical}"
            text += f", most of it in {part_words(late.part)}" if late.part is not None else ""
        if late.phases:
            text += f"; only in {phase_words(late.phases)}"
        if late.queued_share is not None:
            text += f"; it waits {percent(late.queued_share)} of its time for a processor"
        yield "Rank", text
    if report.idle_share is not None:
        yield "Device", f"idle for {percent(report.idle_share)} of the time in profiler windows"
    elif report.device != "cpu" and report.times["compute"].mean_s is not None and not _no_windows(report):
        yield "Device", "how long it is idle inside a step is not known: ddlprof run --profiler-windows 3 looks"


def _no_windows(report: ReportData) -> bool:
    """Whether the run has noted that torch's profiler does not record its device."""
    return any(note.startswith("device: ") and "--profiler-windows" in note for note in report.notes)


def _findings(report: ReportData, scale: Scale) -> Iterator[tuple[str, str]]:
    """The best findings besides the one whose action the verdict gives."""
    rule = report.verdict.rule if report.verdict else None
    for finding in [each for each in report.findings if each.rule != rule][:FINDINGS]:
        concerned = f"{percent(finding.share)} of the {finding.of}, " if finding.share is not None else ""
        text = f"{finding.title} ({concerned}{finding.severity}): {finding.next}"
        yield "Also", text + _gain(report, finding, scale)


def _gain(report: ReportData, finding: Finding, scale: Scale) -> str:
    """`: up to 2.1 of 17.0 ms`: the largest possible gain."""
    step = report.step_s
    if finding.gain_s is None or step is None or finding.gain_s < WORTH_SHARE * step:
        return ""
    return f": up to {scale.number(finding.gain_s)} of {scale.time(step)}"


def _other(report: ReportData) -> Iterator[tuple[str, str]]:
    if report.times["compute"].mean_s is None:  # then computing is part of `other`
        return
    if (report.times["other"].share or 0.0) >= OTHER_SHARE and report.other_lines:
        lines = (f"{line.place} {percent(line.share)}" for line in report.other_lines[:OTHER_LINES])
        yield "Other", ", ".join(lines) + f" (of {count(report.other_samples, 'stack sample')})"


def loss_text(loss: LossLine) -> str | None:
    """The card's line about the loss; None where its course cannot be predicted."""
    if not loss.predictable or loss.error is None or loss.floor is None or loss.updates_to_90_percent is None:
        return None
    if loss.first is None or loss.last is None:
        return None
    fell = f"{significant(loss.first, 4)} -> {significant(loss.last, 4)} in {count(loss.updates, 'update')}"
    return (
        f"{fell}; predictable (error {percent(loss.error)} on its last third): will level off at"
        f" {significant(loss.floor, 4)}, 90 % of the way there after {loss.updates_to_90_percent:,.0f} updates"
    )


def _stopped(report: ReportData) -> Iterator[tuple[str, str]]:
    """Ranks that did not end well, grouped by how and where; by how only if that would take many lines."""
    stopped = [rank for rank in report.ranks if rank.status not in GOOD_ENDS]
    alike = _grouped(stopped, lambda rank: (rank.attempt, _ending(rank), rank.last_step, ago(rank.silent_s)))
    if len(alike) > STOPPED_LINES:
        alike = _grouped(stopped, lambda rank: (rank.attempt, _ending(rank)))
    for ranks in alike[:STOPPED_LINES]:
        name = f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges([rank.rank for rank in ranks])}"
        name += f" of attempt {ranks[0].attempt}" if report.attempts > 1 else ""
        name += f" (node {ranges([rank.node for rank in ranks])})" if report.nodes > 1 else ""
        yield "Stopped", f"{name}: {_ending(ranks[0])} {_where(ranks)}, {ago(min(rank.silent_s for rank in ranks))}"
    if left_out := sum(map(len, alike[STOPPED_LINES:])):
        yield "Stopped", f"{count(left_out, 'more rank')}: ddlprof export writes all of them to ranks.csv"


def _grouped(ranks: list[RankLine], key: Callable[[RankLine], object]) -> list[list[RankLine]]:
    groups: dict[object, list[RankLine]] = {}
    for rank in ranks:
        groups.setdefault(key(rank), []).append(rank)
    return list(groups.values())


def _where(ranks: list[RankLine]) -> str:
    steps = [rank.last_step for rank in ranks if rank.last_step is not None]
    if not steps:
        return "before its first step"
    first, last = min(steps), max(steps)
    if len(steps) < len(ranks):
        return f"after step {last} at the latest"
    return f"after step {last}" if first == last else f"after steps {first} to {last}"


def _clocks(report: ReportData) -> str:
    """The line about the machines' clocks, where they are far apart or the difference is not known."""
    unknown = [clock.node for clock in report.clocks if clock.offset_s is None or clock.bound_s is None]
    if unknown:
        why = "no collective links them" if report.device == "cpu" else "NCCL does not tell when its collectives end"
        return f"node {ranges(unknown)} not compared with node {report.clocks[0].node}: {why}"
    widest = max((clock.bound_s or 0.0 for clock in report.clocks), default=0.0)
    farthest = max(report.clocks, key=lambda clock: abs(clock.offset_s or 0.0), default=None)
    if farthest is None:
        return ""
    offset = abs(farthest.offset_s or 0.0)
    if widest <= CLOCK_BOUND_S and offset <= CLOCK_OFFSET_S:
        return ""
    scale = scale_for(max(offset, widest))
    apart = f"up to {scale.time(offset)} apart (node {farthest.node}), known to ±{scale.time(widest)}"
    return f"{apart}; start_s in the CSV files is corrected, no class depends on it"


def _ending(rank: RankLine) -> str:
    if rank.complete:
        return f"ended by {rank.status}"
    return "still running, or killed," if rank.silent_s < STILL_RUNNING_S else "no word (killed?)"


def _context(report: ReportData) -> str:
    context = report.context
    parts = [
        f"CPU {context.cpu_percent:.0f} %" if context.cpu_percent is not None else "",
        f"waited for a processor {percent(context.queued_share)}" if context.queued_share is not None else "",
        f"process {gib(context.process_rss_bytes)}" if context.process_rss_bytes is not None else "",
        f"GPU {context.gpu_percent:.0f} %" if context.gpu_percent is not None else "",
        f"GPU memory {gib(context.gpu_memory_bytes)}" if context.gpu_memory_bytes is not None else "",
        f"GPU power {context.gpu_power_w:.0f} W" if context.gpu_power_w is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def _peak_memory(report: ReportData) -> str:
    """The peak memory of the rank that has the most."""
    context = report.context
    peaks = {
        "allocated on the device": context.gpu_peak_allocated_bytes,
        "reserved there": context.gpu_peak_reserved_bytes,
        "resident in the process": context.process_peak_rss_bytes,
    }
    known = [f"{gib(peak)} {where}" for where, peak in peaks.items() if peak is not None]
    return f"peak {', '.join(known)}" if known else ""


def _overhead(report: ReportData) -> str:
    overhead = report.looking
    parts: list[str] = []
    if overhead.hooks_s_per_step is not None:
        share = f" ({percent(overhead.hooks_share)})" if overhead.hooks_share is not None else ""
        parts.append(f"hooks {overhead.hooks_s_per_step * 1e6:.0f} µs a step{share}")
    if overhead.helper_core_share is not None:
        parts.append(f"helper thread {percent(overhead.helper_core_share)} of a core")
    if overhead.calibration_s is not None:
        parts.append(f"calibration {overhead.calibration_s:.1f} s before the training")
    return ", ".join(parts)


def _nothing(report: ReportData) -> Iterator[tuple[str, str]]:
    """The reason why there is no step, and a remedy."""
    yield "Verdict", "no step was measured"
    if (report.manifest or {}).get("job_id", "").startswith(IMPORTED):
        yield "  why", "the traces hold no whole step"
        yield "  next", "let torch.profiler record some (active of its schedule, step() after each), and end by itself"
        return
    if any(LEFT_OUT in note for note in report.notes):
        yield "  why", "steps were recorded, but their classes do not add up: damage, or a class of another version"
        yield "  next", "read the run with the version of ddlprof that recorded it"
        return
    statuses = {rank.status for rank in report.ranks}
    if not report.ranks or statuses == {"torn"}:
        yield "  why", "the run stopped before its first optimizer.step() returned, or has not got there yet"
        yield "  next", "look at the script's own output, and let it train for at least 30 steps"
    elif statuses <= {*GOOD_ENDS}:
        why, note = next(((cause, note) for cause in _NO_STEPS for note in report.notes if cause in note), ("", ""))
        yield "  why", note.partition(": ")[2] or "the script ended, and no optimizer.step() was seen"
        yield (
            "  next",
            _NO_STEPS.get(
                why, "let a torch.optim optimizer make the updates, in processes that inherit the environment"
            ),
        )
    else:
        yield "  why", f"the script ended ({', '.join(sorted(statuses))}) before its first optimizer.step() returned"
        yield "  next", "make the script work without ddlprof first: DDLPROF_DISABLE=1 runs the same command plainly"


LEAST_BESIDES = 0.05  # of the wall time: a smaller part outside of steps gets no line
LEAST_SHOWN = 0.01
NAMES = {"start_up": "start-up", "warm_up": "warm-up", "epoch_start": "first batches of epochs"}
"""The words for parts of a job's time whose name is not clear enough."""
_COUNTED = {"evaluation": "evaluations", "checkpoint": "checkpoints", "epoch_start": "epochs"}
_UNTIL = {
    "end": "",
    "entry": ", until its last entry",
    "stopped": " until measuring stopped: what came after is not in it",
}


def job_line(job: JobTime) -> str | None:
    """The wall time and its parts, the largest first; None where the job is nearly all ordinary steps."""
    shares = {part: share for part in job.parts_s if (share := job.share(part))}
    if 1 - shares.get("steps", 0.0) < LEAST_BESIDES:
        return None
    shown = sorted((part for part in shares if shares[part] >= LEAST_SHOWN), key=lambda part: -shares[part])
    parts = ", ".join(_part(job, part, shares[part]) for part in shown)
    how = "" if job.timed else "; an imported run: told by the flags of its steps"
    return f"{long_time(job.wall_s)} in all{_UNTIL[job.until]}: {parts}{how}"


def _part(job: JobTime, part: str, share: float) -> str:
    times = getattr(job, _COUNTED[part]) if part in _COUNTED else None
    many = f" ({count(times, 'time')})" if times else ""
    return f"{NAMES.get(part, part)} {percent(share)}{many}"
