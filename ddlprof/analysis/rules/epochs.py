"""Rules about what comes before steps: the start of the job, and the first batches of epochs."""

from __future__ import annotations

from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.input import worker_s
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.sources import SourceShare, StartSources
from ddlprof.analysis.thresholds import (
    FINDING_STEPS,
    FIRST_BATCH_FACTOR,
    JOB_EVENTS,
    LINE_SAMPLES,
    NEW_ITERATORS_SHARE,
    SKIPPED_BATCHES,
    TURN_SHARE,
    WARN_SHARE,
)
from ddlprof.base.units import count, percent, scale_for
from ddlprof.model import source_locations

PICKLING = ("spawn", "forkserver")
"""The ways of starting workers that pickle the data set."""
_OF_START = source_locations.in_data(source_locations.STARTS)
_OF_SAMPLER = source_locations.in_data(source_locations.SAMPLER)


def epoch_start(facts: Facts) -> Issue | None:
    """Finds a job that spends much of its time waiting for the first batches of epochs, where it is known why."""
    job = facts.job
    share = job.share("epoch_start") if job is not None else None
    if job is None or share is None or share < WARN_SHARE or not job.epochs:
        return None
    reason = _workers(facts, job) or (None if job.several_first else _line(facts))
    if reason is None:
        return None
    why, action = reason
    seconds = job.parts_s["epoch_start"] or 0.0
    each = seconds / job.epochs
    whole = f"{scale_for(seconds).time(seconds)} of {scale_for(job.wall_s).time(job.wall_s)}"
    evidence = f"{count(job.epochs, 'epoch')}: {whole}, {scale_for(each).time(each)} before each first batch; {why}"
    return Issue("the job waits for the first batches of its epochs", evidence, action, job.epochs, share, of="job")


def skipped_batches(facts: Facts) -> Issue | None:
    """Finds batches that are taken before the first step, beyond those that it trains on."""
    job = facts.job
    skipped = job.skipped if job is not None else None
    if job is None or skipped is None or skipped.batches < SKIPPED_BATCHES or job.wall_s <= 0:
        return None
    share = skipped.seconds / job.wall_s
    if share < WARN_SHARE:
        return None
    evidence = (
        f"the loop waits {scale_for(skipped.seconds).time(skipped.seconds)} of "
        f"{scale_for(job.wall_s).time(job.wall_s)} for {count(skipped.batches, 'batch', 'batches')} before its first "
        "step, beyond one for each of its backwards"
    )
    action = (
        "if an interrupted training has had them: begin after them, so that they are not made: a sampler without "
        "their samples (accelerate.skip_first_batches), or a loader that keeps its place (torchdata's "
        "StatefulDataLoader); if it is a pass over the data for a few numbers, keep these in a file; if they fill a "
        "buffer, a smaller one"
    )
    return Issue("the loop takes many batches before its first step", evidence, action, skipped.batches, share,
                 of="job")  # fmt: skip


def new_iterators(facts: Facts) -> Issue | None:
    """Finds a loop that makes an iterator of its loader for every batch."""
    job, training, step = facts.job, facts.training, facts.mean_s("step")
    waits, batches = facts.mean_s("data"), training.micro_batches or 1
    if job is None or not job.epochs or not step or not waits or waits < WARN_SHARE * step:
        return None
    if job.epochs < NEW_ITERATORS_SHARE * job.steps * batches or job.steps < FINDING_STEPS:
        return None
    samples, batch = training.dataset_samples, training.global_batch
    if not samples or not batch or samples < 2 * batch:
        return None  # an epoch may be a batch
    does = "draws the order of all samples"
    if training.loader_workers:
        does = f"starts its {count(training.loader_workers, 'worker')}, throws away what they prepare, and ends them"
    evidence = (
        f"{count(job.epochs, 'iterator')} of the loader in {count(job.steps, 'step')}, though "
        f"{samples:,} samples are many batches: each {does}; the loop waits {facts.scale.time(waits)} "
        "a step for its batches"
    )
    action = (
        "one iterator for the whole epoch: for batch in loader; or iterator = iter(loader) before the loop and "
        "next(iterator) in it, made anew only at StopIteration"
    )
    return Issue("the loop makes a new iterator of its loader for each batch", evidence, action, facts.steady_steps,
                 waits / step, gain_s=waits, about="data")  # fmt: skip


def start_up(facts: Facts) -> Issue | None:
    """Finds a line of the script that takes much of the job before the first step."""
    job, line, samples = facts.job, facts.starting.main, facts.starting.samples
    whole = job.parts_s["start_up"] if job is not None else None
    if job is None or line is None or not whole or job.wall_s <= 0:
        return None
    seconds, turns_s = min(facts.starting.main_s, whole), facts.starting.turns_s
    if turns_s >= WARN_SHARE * job.wall_s:
        return _turns(job, facts.starting)
    if seconds < WARN_SHARE * job.wall_s:
        return None
    items = line.place.what == source_locations.START_ITEMS
    evidence = (
        f"{scale_for(seconds).time(seconds)} of {scale_for(job.wall_s).time(job.wall_s)} are at {line.place.text}, "
        f"{percent(line.share)} of what was seen of the start-up (of {samples} stack samples)"
    )
    caller = facts.starting.wider[-1].place.text if facts.starting.wider else line.place.text
    evidence += f", called at {caller}" if caller.endswith("<module>") and caller != line.place.text else ""
    action = "do it once and keep the result in a file (numpy.save, torch.save), which the start reads"
    if items:
        evidence += ", where samples of the data set are made"
        action = (
            "keep what is asked of all samples (lengths, labels, weights) in a column or a file, made once, and read "
            "that (in transformers' Trainer length_column_name=)"
        )
    title = "the job goes through its data before it trains" if items else "the job starts slowly at one line"
    return Issue(title, evidence, action, samples, seconds / job.wall_s, of="job",
                 severity=None if items else "info")  # fmt: skip


def _turns(job: JobTime, starting: StartSources) -> Issue:
    """The issue of ranks that do the same work one after another."""
    seconds, main = starting.turns_s, starting.main
    whole = scale_for(job.wall_s).time(job.wall_s)
    evidence = f"each rank is at {starting.widest} for {scale_for(seconds).time(seconds)} of {whole}"
    evidence += f", mostly at {main.place.text}" if main is not None and main.place.text != starting.widest else ""
    evidence += ", and waits for other ranks about as long before its first step"
    action = (
        "let one rank do it, which keeps the result in a file, and the others read that after the barrier; or, if it "
        "is not the same for all, all ranks at one time, without the barrier"
    )
    return Issue("the job starts with the same work on its ranks, one after another", evidence, action,
                 starting.samples, seconds / job.wall_s, of="job")  # fmt: skip


def _workers(facts: Facts, job: JobTime) -> tuple[str, str] | None:
    """The reason and the cure where a loader starts its workers anew, unless the first batch itself takes as long."""
    training, first = facts.training, (job.parts_s["epoch_start"] or 0.0) / (job.epochs or 1)
    if not training.loader_workers or training.persistent_workers is not False:
        return None
    batch = (worker_s(facts) or 0.0) / (training.micro_batches or 1)
    if first < FIRST_BATCH_FACTOR * batch:
        return None
    why = f"the loader starts its {count(training.loader_workers, 'worker')} anew each time"
    action = "keep the workers: DataLoader(persistent_workers=True), made once before the first epoch"
    if training.dataset_samples is None:  # an iterable data set, whose __iter__ may work before its first sample
        action += "; if __iter__ of the data set fills a buffer or reads ahead first, a smaller one"
    if training.worker_start in PICKLING:
        why += f" by {training.worker_start}: each imports the script and gets a pickled copy of the data set"
        if facts.device == "cpu" and training.worker_start == "spawn":
            action += '; or by fork, which copies nothing: DataLoader(multiprocessing_context="fork")'
    elif (starting := _starting(facts)) is not None:
        why += f", {percent(starting.share)} of it in this process, which is copied for each"
    return why, action


def _starting(facts: Facts) -> SourceShare | None:
    """The share of the first batches' waits in which this process starts workers."""
    first = facts.data_lines.first
    known = first.samples >= LINE_SAMPLES
    return next((each for each in first.shares if known and each.place.what == _OF_START), None)


def _line(facts: Facts) -> tuple[str, str] | None:
    """The reason and the cure where one place has most of what the first batches wait for in this process."""
    line = _main(facts)
    if line is None or line.place.what == _OF_START:
        return None
    why = f"{percent(line.share)} of it is at {line.place.text}"
    if line.place.what == _OF_SAMPLER:
        return why, f"draw no more than an epoch uses: num_samples of the sampler ({line.place.text})"
    return why, f"do once, before the training, what each epoch does at {line.place.text}"


def _main(facts: Facts) -> SourceShare | None:
    return next((each for each in facts.data_lines.first.shares if each.sure), None)


RULES = (
    Rule("skipped_batches", "The loop takes many batches before its first step",
         f"{percent(WARN_SHARE)} of the job's wall time, in waits of the first step for batches beyond one for each of "
         f"its backwards, and for each later one of a step without a batch; {SKIPPED_BATCHES} of them",
         "fewer may be those of a filter, or of several losses", JOB_EVENTS,
         "the samples of the batches are not known, batches are not of one size, or it evaluates on them",
         skipped_batches),
    Rule("new_iterators", "The loop makes an iterator of its loader for each batch",
         f"{percent(WARN_SHARE)} of the step spent waiting for data, and an iterator for {NEW_ITERATORS_SHARE:.1f} "
         "batches or more of a data set of two batches at least",
         "an iterator is made for each epoch; each starts workers anew and draws the order of all samples",
         FINDING_STEPS, "waiting for data is not measured, or the size of the data set is not known", new_iterators),
    Rule("start_up", "The job starts slowly at one line of the script",
         f"{percent(WARN_SHARE)} of the job's wall time before its first step at a line (else in a function, else from "
         "a line of the script) with a third of the stack samples then for certain",
         "less is not worth a day of anybody's work; an info unless samples of the data set are made there, or ranks "
         f"take turns: each waits for others for {percent(TURN_SHARE)} as long",
         LINE_SAMPLES, "the job's wall time is not known, or the time goes to imports and to waiting for other ranks",
         start_up),
    Rule("epoch_start", "The job waits for the first batches of its epochs",
         f"{percent(WARN_SHARE)} of the job's wall time, for workers that start anew and take {FIRST_BATCH_FACTOR:.0f} "
         "times as long as a batch, or at a place with a third of the stack samples then for certain",
         "less is not worth a day of anybody's work; a single one is no habit", JOB_EVENTS,
         "the job's wall time is not known, the workers are kept, the first step of an epoch takes several batches, or "
         "nobody knows what the first batch waits for",
         epoch_start),
)  # fmt: skip
