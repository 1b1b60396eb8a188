"""A comparison as plain text, and its sentences, which Markdown has too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ddlprof.analysis.changes import GROUPS
from ddlprof.analysis.compare import BROKEN, IN_NOISE
from ddlprof.analysis.shifts import FASTER, FEW_STEPS, NONE, SLOWER
from ddlprof.analysis.thresholds import BUSY_CPU_PERCENT, LINE_OF_STEP_SHARE
from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, listed, percent, scale_for, signed_percent, significant, tenths_of_percent
from ddlprof.model.classes import CLASSES, TABLE
from ddlprof.report.compare import job as jobs
from ddlprof.report.compare.data import SAMPLE, ComparisonData, GateLine, JobLine, RowLine, ShiftLine, SideLine
from ddlprof.report.compare.figures import change, figures, heads, interval_of, signed
from ddlprof.report.text import aligned

LONGEST_NAME = 160
ENOUGH_RUNS = 4  # with fewer runs, Student's t has such long tails that only large differences stand out
QUEUED_SHARE = 0.02  # of the time: a machine without other work reaches lower values, too
_LABEL_WIDTH = 9
_NUMBERS = range(1, 6)


def render(data: ComparisonData) -> str:
    """The comparison, ending with a line end."""
    job = ["", *_job_table(data.job)] if data.job else []
    return text_of([*_lines(_head(data)), "", *_table(data), *job, "", *_lines(_rest(data))])


def _lines(labelled: Iterator[tuple[str, str]]) -> Iterator[str]:
    return (f"{label:<{_LABEL_WIDTH}}{text}" for label, text in labelled)


def _head(data: ComparisonData) -> Iterator[tuple[str, str]]:
    yield "ddlprof", f"compare: A {_side(data.a)} · B {_side(data.b)}"
    yield "Verdict", verdict(data)
    for reason in why(data):
        yield "  why", reason
    if rates := throughput(data):
        yield "Rate", rates
    for gate in data.gates:
        yield "Gate", gate_outcome(gate, data)


def _side(side: SideLine) -> str:
    steps = sum(run.steady_steps for run in side.runs)
    return f"{' '.join(run.run for run in side.runs)} ({count(steps, 'steady step')})"


def _table(data: ComparisonData) -> list[str]:
    scale = scale_of(data)
    head = heads("class", data.basis, scale, "" if data.basis == "step" else f" a {data.basis}")
    rows = [[label(row), *figures(row, scale)] for row in rows_shown(data)]
    return aligned([head, *rows], right=_NUMBERS)


def _job_table(job: JobLine) -> list[str]:
    scale = jobs.scale_of(job)
    rows = [[jobs.label(row), *figures(row, scale)] for row in jobs.rows_shown(job)]
    return aligned([heads("job", "job", scale), *rows], right=_NUMBERS)


def _rest(data: ComparisonData) -> Iterator[tuple[str, str]]:
    if (a := bound_by(data.a)) != (b := bound_by(data.b)):
        yield "Bound by", f"{a} in A, {b} in B"
    if (a := late_ranks(data.a)) != (b := late_ranks(data.b)):
        yield "Late", f"{a} in A, {b} in B"
    for finding in data.findings:
        yield "Finding", f"{'gone' if finding.side == 'A' else 'new'}: {finding.title} ({finding.rule})"
    for facts in changed(data, str):
        yield "Changed", facts
    for note in notes(data, str):
        yield "Note", note
    yield "Noise", how(data)


def scale_of(data: ComparisonData) -> Scale:
    """The scale of all times of the comparison, with one digit more than in a card, as differences are small."""
    scale = scale_for(max(data.step.a_s or 0.0, data.step.b_s or 0.0))
    return replace(scale, decimals=scale.decimals + 1)


def verdict(data: ComparisonData) -> str:
    """The comparison in a sentence."""
    broken = listed([line.gate for line in data.gates if line.state == BROKEN])
    unequal = jobs.unequal_work(data)
    return (f"limit broken ({broken}); " if broken else "") + _difference(data) + (f"; {unequal}" if unequal else "")


def _difference(data: ComparisonData) -> str:
    """Whether B is faster, in the step or in the job; the one that differs comes first."""
    step, job = _of_step(data), data.job
    if job is None or not jobs.differs(data):
        parts = jobs.parts_besides_a_step(data)
        return f"{step}; in the job {listed(parts)}" if parts else step
    if data.step.word in (FASTER, SLOWER):
        return f"{step}; {jobs.size(job)}: {jobs.figures(job)}"
    return f"B is {jobs.size(job)}: {jobs.figures(job)}; {step}"


def _of_step(data: ComparisonData) -> str:
    row, scale = data.step, scale_of(data)
    a, b = scale.number(row.a_s or 0.0), scale.time(row.b_s or 0.0)
    if row.mean is None or row.word == FEW_STEPS:
        return f"too few steps to tell: {b} a {data.basis} in B, {a} in A"
    interval = interval_of(row.mean)
    if row.word != NONE:
        size = tenths_of_percent(abs(row.mean.share or 0.0))
        return f"B is {size} {row.word} in the step: {b} a {data.basis} instead of {a} ({interval})"
    figures = f"{b} a {data.basis} in B, {a} in A ({interval})"
    if row.own and row.own.word in (FASTER, SLOWER):
        return f"{_without_waiting(row.own)}; with that nothing is beyond the noise: {figures}"
    if _slow_steps(data) and row.typical and row.typical.word in (FASTER, SLOWER):
        return f"without single slow steps, {_differs(row.typical)}; with them nothing is beyond the noise: {figures}"
    moved = [f"{label(each).strip()} is {each.word} ({change(each.mean)})" for each in _moved(data) if each.mean]
    if not moved:
        return f"no difference of the step beyond the noise: {figures}"
    return f"no difference of the step beyond the noise, but {listed(moved)}: {figures}"


def why(data: ComparisonData) -> Iterator[str]:
    """Sentences on which classes make the step differ, and on single slow steps that hide or make the difference."""
    if data.step.word in (FASTER, SLOWER):
        scale = scale_of(data)
        moved = {word: [_amount(row, scale) for row in _moved(data) if row.word == word] for word in (FASTER, SLOWER)}
        against = moved.pop(FASTER if data.step.word == SLOWER else SLOWER)
        if same := moved[data.step.word]:
            yield ", ".join(same) + (f"; against it {', '.join(against)}" if against else "")
        else:
            classes = [row for row in data.rows if row.name in CLASSES and row.mean]
            largest = max(classes, key=lambda row: abs(row.mean.difference_s) if row.mean else 0.0)
            yield f"no class alone is beyond the noise; the most is {_amount(largest, scale)}"
    if data.step.own and (data.step.word != NONE or data.step.own.word not in (FASTER, SLOWER)):
        yield _without_waiting(data.step.own)
    yield from _single_steps(data)
    yield from _pauses(data)
    if data.job and jobs.differs(data) and (reason := jobs.why(data.job)):
        yield reason


def _without_waiting(own: ShiftLine) -> str:
    """The difference of the step without the time in which the main thread waited for a processor."""
    return f"without what it waited for a processor, {_differs(own)}"


def _differs(shift: ShiftLine) -> str:
    size = tenths_of_percent(abs(shift.share or 0.0))
    differs = f"B is {size} {shift.word} in the step" if shift.word != NONE else "no difference is seen"
    return f"{differs} ({interval_of(shift)})"


def _slow_steps(data: ComparisonData) -> list[str]:
    """The number of single slow steps that moved a mean, of each side that has some."""
    return [
        f"{count(sum(len(run.slow_steps) for run in side.runs), 'step')} of {letter}"
        for letter, side in (("A", data.a), ("B", data.b))
        if any(run.slow_steps for run in side.runs)
    ]


def _single_steps(data: ComparisonData) -> Iterator[str]:
    """The difference without single slow steps; nothing where there are no such steps."""
    if data.step.typical is not None and (slow := _slow_steps(data)):
        moved = f"{' and '.join(slow)} took so long that the mean moved"
        yield f"{moved}; without such steps {_differs(data.step.typical)}"


def _pauses(data: ComparisonData) -> Iterator[str]:
    """Of how much of the steps the garbage collector pauses each side, where that differs by as much as a line of a
    script is worth. Few long pauses make the mean uncertain, but all that there were are counted."""
    a, b = (_mean([run.collector_share for run in side.runs]) for side in (data.a, data.b))
    if a is not None and b is not None and abs(a - b) >= LINE_OF_STEP_SHARE:
        yield f"the garbage collector paused the steps of A for {percent(a)} of their time, those of B for {percent(b)}"


def _moved(data: ComparisonData) -> list[RowLine]:
    """The classes that differ, and the differing parts of other classes; the largest difference first."""
    rows = {row.name: row for row in data.rows if row.word in (FASTER, SLOWER)}
    names = (name for each in TABLE for name in ([each.name] if each.name in rows else each.part_names))
    moved = [rows[name] for name in names if name in rows]
    return sorted(moved, key=lambda row: -abs(row.mean.difference_s) if row.mean else 0.0)


def _amount(row: RowLine, scale: Scale) -> str:
    assert row.mean
    grew = f"{signed(row.mean.difference_s, scale)} {scale.unit} ({change(row.mean)} of the step)"
    return f"{label(row).strip()} {grew}"


def gate_outcome(line: GateLine, data: ComparisonData) -> str:
    """The outcome of a gate in a sentence."""
    scale = scale_of(data)
    step_s = data.step.a_s or 0.0

    def amount(seconds: float) -> str:
        share = signed_percent(seconds / step_s) if step_s else ""
        return f"{signed(seconds, scale)} {scale.unit}" + (f" ({share} of A's {data.basis})" if share else "")

    grew = f"{line.name} {amount(line.difference_s)}, limit {amount(line.limit_s)}"
    if line.state == BROKEN:
        return f"BROKEN  {line.gate}: {grew}, {amount(line.difference_s - line.limit_s)} too much"
    if line.state == IN_NOISE:
        few = any(row.name == line.name and row.word == FEW_STEPS for row in data.rows)
        doubt = "too few steps tell whether that is noise" if few else "that is within the noise"
        return f"kept  {line.gate}: {grew}, but {doubt}: more steps or more runs a side would tell"
    return f"kept  {line.gate}: {grew}"


def how(data: ComparisonData) -> str:
    """How the noise was estimated, in a line."""
    step = "both intervals of the step hold" if data.step.own else "the interval of the step holds"
    job = f", those of the job together in {100 * data.others_confidence:g}" if data.job else ""
    text = (
        f"{step} in {100 * data.step_confidence:g} of 100 comparisons, all others together in "
        f"{100 * data.others_confidence:g}{job}; that steps resemble their neighbours is counted in"
    )
    if data.noise is None:
        return f"{text}, and how runs differ is taken from the runs"
    return (
        f"{text}; how equal runs differ is not seen in one run: {100 * data.noise:.2g} % of the step is taken for it "
        "(--noise), several runs a side show it"
    )


def notes(data: ComparisonData, name: Callable[[str], str]) -> Iterator[str]:
    """What a reader must know before trusting the table; `name` makes names from users' machines safe to show."""
    if {run.run for run in data.a.runs} & {run.run for run in data.b.runs}:
        yield "a run is on both sides"
    yield from _comparable(data, name)
    for letter, side in (("A", data.a), ("B", data.b)):
        yield from _of_side(letter, side, name)
    yield from _unmeasured(data)
    yield from jobs.notes(data)
    yield from _few_runs(data)
    yield from _busy(data)


def _comparable(data: ComparisonData, name: Callable[[str], str]) -> Iterator[str]:
    models = [sorted({run.model for run in side.runs if run.model}) for side in (data.a, data.b)]
    if models[0] and models[1] and models[0] != models[1]:
        a, b = (listed([name(model) for model in side]) for side in models)
        yield f"the models differ: {a} in A, {b} in B"
    if any(change.what == "timeline" for change in data.changes):
        yield "one side is timed by the host's clock, the other by the device's: their classes are of two timelines"
    batches = [sorted({run.global_batch for run in side.runs if run.global_batch}) for side in (data.a, data.b)]
    if data.basis == SAMPLE:
        a, b = (listed([f"{batch:,}" for batch in side]) for side in batches)
        yield f"the global batches differ ({a} in A, {b} in B), so all times are those of one sample"
    elif any(run.global_batch is None for side in (data.a, data.b) for run in side.runs):
        yield "a global batch is not known, so steps are compared whatever their batch"


def _of_side(letter: str, side: SideLine, name: Callable[[str], str]) -> Iterator[str]:
    for run in side.runs:
        of = letter if len(side.runs) == 1 else f"{letter} ({name(run.run)})"
        if run.complete_ranks < run.world_size:
            yield f"{of}: {run.complete_ranks} of {count(run.world_size, 'rank')} complete; its steps until then count"
        if run.unreadable:
            yield f"{of}: not all of it can be read, as ddlprof report says"
        if run.attempts > 1:
            yield f"{of}: attempt {run.attempt} of 0-{run.attempts - 1} is compared"


def _unmeasured(data: ComparisonData) -> Iterator[str]:
    for row in data.rows:
        if row.name in CLASSES and (row.a_s is None) != (row.b_s is None):
            side = "A" if row.a_s is None else "B"
            yield f"{row.name} was not measured in {side}: there its time is in other classes, which then differ too"


def _few_runs(data: ComparisonData) -> Iterator[str]:
    fewest = min(len(data.a.runs), len(data.b.runs))
    if 1 < fewest < ENOUGH_RUNS:
        yield f"{fewest} runs a side tell little of how runs differ: from {ENOUGH_RUNS} on the intervals are narrower"


def _busy(data: ComparisonData) -> Iterator[str]:
    """A remark where runs shared the host with other work, which may cause the difference."""
    queued = [_mean([run.queued_share for run in side.runs]) for side in (data.a, data.b)]
    if queued[0] is not None and queued[1] is not None:
        if max(queued[0], queued[1]) >= QUEUED_SHARE:
            shares = f"{percent(queued[0])} of the time in A and {percent(queued[1])} in B"
            yield f"the main thread waited for a processor for {shares}: other work on the host makes runs differ"
        return
    busy = [_mean([run.cpu_percent for run in side.runs]) for side in (data.a, data.b)]
    if busy[0] is not None and busy[1] is not None and max(busy[0], busy[1]) >= BUSY_CPU_PERCENT:
        shares = f"{busy[0]:.0f} % of the time in A and {busy[1]:.0f} % in B"
        yield f"the host's processors were busy for {shares}: if that was other work, it makes runs differ"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def late_ranks(side: SideLine) -> str:
    """Which ranks the others wait for."""
    late = [run.late_rank for run in side.runs if run.late_rank]
    if not late:
        return "none"
    names = sorted({each.rank for each in late})
    causes = sorted({each.cause for each in late if each.cause})
    of = f" in {len(late)} of {len(side.runs)} runs" if len(side.runs) > 1 else ""
    return f"{listed([f'rank {rank}' for rank in names])}{of}" + (f" ({listed(causes)})" if causes else "")


def bound_by(side: SideLine) -> str:
    """The verdicts of the runs of a side, each once."""
    return listed(sorted({run.verdict or "not known" for run in side.runs}))


def rows_shown(data: ComparisonData) -> list[RowLine]:
    """The step, all classes, and the parts that took time on one side."""
    return [row for row in data.rows if row.name in ("step", *CLASSES) or (row.a_s or row.b_s)]


def label(row: RowLine) -> str:
    """The name of a row; a part stands below its class."""
    for each in TABLE:
        if row.name in each.part_names:
            return f"  {each.short(row.name)}"
    return row.name


def throughput(data: ComparisonData) -> str | None:
    """Samples a second on both sides; None where a batch is not known."""
    a, b = data.a.samples_per_s, data.b.samples_per_s
    if not a or not b:
        return None
    return f"{significant(a)} samples/s in A, {significant(b)} in B ({signed_percent(b / a - 1)})"


def changed(data: ComparisonData, name: Callable[[str], str]) -> Iterator[str]:
    """The facts that differ besides the times, a line for each kind: `environment: torch 2.6.0 -> 2.7.0, ...`."""
    for group in GROUPS:
        of = [each for each in data.changes if each.group == group]
        texts = [
            f"{name(each.what)} {name(_shortened(each.a))} -> {name(_shortened(each.b))}"
            for each in of
            if each.a is not None and each.b is not None
        ]
        for side, values in (
            ("A", [(each.what, each.a) for each in of if each.b is None]),
            ("B", [(each.what, each.b) for each in of if each.a is None]),
        ):
            if values:
                facts = ", ".join(f"{name(what)} {name(_shortened(value or ''))}" for what, value in values)
                texts.append(f"known of {side} only: {facts}")
        if texts:
            yield f"{group}: {'; '.join(texts)}"


def _shortened(text: str) -> str:
    half = LONGEST_NAME // 2
    return text if len(text) <= LONGEST_NAME else f"{text[:half]} ... {text[-half:]}"
