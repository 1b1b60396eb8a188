"""The rule about the first batches of epochs, which the job waits for beyond an ordinary wait."""

from __future__ import annotations

from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.input import worker_s
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.sources import SourceShare
from ddlprof.analysis.thresholds import FIRST_BATCH_FACTOR, JOB_EVENTS, LINE_SAMPLES, WARN_SHARE
from ddlprof.base.units import count, percent, scale_for
from ddlprof.model import source_locations

_OF_START = source_locations.in_data(source_locations.STARTS)
_OF_SAMPLER = source_locations.in_data(source_locations.SAMPLER)


def epoch_start(facts: Facts) -> Issue | None:
    """Finds a job that spends much of its time waiting for the first batches of epochs, where it is known why."""
    job = facts.job
    share = job.share("epoch_start") if job is not None else None
    if job is None or share is None or share < WARN_SHARE or not job.epochs:
        return None
    reason = _workers(facts, job) or _line(facts)
    if reason is None:
        return None
    why, action = reason
    seconds = job.parts_s["epoch_start"] or 0.0
    each = seconds / job.epochs
    whole = f"{scale_for(seconds).time(seconds)} of {scale_for(job.wall_s).time(job.wall_s)}"
    evidence = f"{count(job.epochs, 'epoch')}: {whole}, {scale_for(each).time(each)} before each first batch; {why}"
    return Issue("the job waits for the first batches of its epochs", evidence, action, job.epochs, share, of="job")


def _workers(facts: Facts, job: JobTime) -> tuple[str, str] | None:
    """The reason and the cure where a loader starts its workers anew, unless the first batch itself takes as long."""
    training, first = facts.training, (job.parts_s["epoch_start"] or 0.0) / (job.epochs or 1)
    if not training.loader_workers or training.persistent_workers is not False:
        return None
    batch = (worker_s(facts) or 0.0) / (training.micro_batches or 1)
    if first < FIRST_BATCH_FACTOR * batch:
        return None
    why = f"the loader starts its {count(training.loader_workers, 'worker')} anew each time"
    starting = next((each for each in facts.data_lines.first.shares if each.place.what == _OF_START), None)
    if starting is not None and facts.data_lines.first.samples >= LINE_SAMPLES:
        why += ", which this process makes ready for them (by fork, or by pickling the data set)"
    return why, "keep the workers: DataLoader(persistent_workers=True), made once before the first epoch"


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
    Rule("epoch_start", "The job waits for the first batches of its epochs",
         f"{percent(WARN_SHARE)} of the job's wall time, for workers that start anew and take {FIRST_BATCH_FACTOR:.0f} "
         "times as long as a batch, or at a place with a third of the stack samples then for certain",
         "less is not worth a day of anybody's work; a single one is no habit", JOB_EVENTS,
         "the job's wall time is not known, the workers are kept, or nobody knows what the first batch waits for",
         epoch_start),
)  # fmt: skip
