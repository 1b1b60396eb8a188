"""Rules about what makes the batches: the line at which it is done, and workers that all make the same ones."""

from __future__ import annotations

from ddlprof.analysis.rules.compute import host_contention
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.input import SPLIT, comes_first, line_gain_s, made_at, read_beyond, workers_are_the_limit
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import (
    FINDING_STEPS,
    LINE_OF_STEP_SHARE,
    LINE_SAMPLES,
    LINE_SHARE,
    READ_BYTES,
    READ_FACTOR,
    WARN_SHARE,
)
from ddlprof.base.units import count, percent, significant


def data_line(facts: Facts) -> Issue | None:
    """Finds the line at which most of the making of batches is spent."""
    share, line = facts.summary.share("data"), facts.data_lines.main
    if share is None or share < WARN_SHARE or line is None or not workers_are_the_limit(facts):
        return None
    if facts.crowded and host_contention(facts) is not None:  # any line is slow then
        return None
    gain_s = line_gain_s(facts)
    if gain_s is None:
        return None
    samples = facts.data_lines.inner.samples
    evidence = (
        f"the loop waits {facts.mean('data')} a step for its batches; {percent(line.share)} of what making them takes "
        f"is at {line.place.text} (of {samples} stack samples)"
    )
    return Issue("batches are made slowly at one line", evidence, made_at(facts, line), samples, share, gain_s=gain_s,
                 about="data", severity=None if comes_first(facts) else "info")  # fmt: skip


def repeated_samples(facts: Facts) -> Issue | None:
    """Finds an iterable data set that is not split among the workers of its loader."""
    workers = facts.training.loader_workers or 0
    if not facts.training.repeated_batches or workers < 2:
        return None
    evidence = (
        f"in each round of the first {2 * workers} batches all {workers} workers gave the same one: the data set is "
        f"iterable, each worker goes through all of it, and an epoch trains on each sample {workers} times"
    )
    return Issue("each worker gives all samples again", evidence, SPLIT, facts.steady_steps,
                 _needless_share(facts, workers), of="job", about="data")  # fmt: skip


def same_samples(facts: Facts) -> Issue | None:
    """Finds ranks that all train on the same samples."""
    ranks = facts.world_size
    if not facts.same_batches or facts.training.strategy not in ("ddp", "fsdp"):
        return None
    if facts.training.data_parallel_ranks not in (None, ranks):  # others share the work on a sample
        return None
    evidence = (
        f"the first two batches of all {ranks} ranks are the same: each goes through all of the data, and the ranks "
        "together learn what one would"
    )
    action = (
        "sampler=DistributedSampler(data) in the DataLoader in place of shuffle=True, and sampler.set_epoch(epoch) in "
        "each epoch; an iterable data set gives each rank its part: samples[rank::world_size]"
    )
    return Issue("all ranks train on the same samples", evidence, action, facts.steady_steps,
                 _needless_share(facts, ranks), of="job", about="data")  # fmt: skip


def same_order(facts: Facts) -> Issue | None:
    """Finds a DistributedSampler that is never told the number of the epoch."""
    repeated = facts.training.repeated_orders
    if not repeated:
        return None
    evidence = "the loader's DistributedSampler draws the order of samples from its epoch's number, which was the same "
    evidence += f"in {count(repeated + 1, 'epoch')}"
    return Issue("every epoch has the same order of samples", evidence,
                 "sampler.set_epoch(epoch) before each epoch", facts.steady_steps, severity="warning")  # fmt: skip


def _needless_share(facts: Facts, copies: int) -> float:
    """The share of the job that trains on samples again, where each is trained on so many times in place of once."""
    steps = facts.job.share("steps") if facts.job is not None else None
    return (1.0 if steps is None else steps) * (1 - 1 / copies)


def reads_beyond(facts: Facts) -> Issue | None:
    """Finds a loader that reads far more for a sample than it uses."""
    share, factor, cost = facts.summary.share("data"), read_beyond(facts), facts.loader
    if share is None or share < WARN_SHARE or factor is None or cost is None or not cost.read_bytes:
        return None
    evidence = (
        f"the loop waits {facts.mean('data')} a step for its batches; {significant(cost.read_bytes / 1e6)} MB are read "
        f"for a sample, {significant(factor, 2)} times what it has in the batch"
    )
    line = facts.data_lines.main
    evidence += f"; most of the time is at {line.place.text}" if line is not None else ""
    action = (
        'read only what is used: np.load(path, mmap_mode="r") in place of whole files, chunks of a sample in '
        "HDF5 or Zarr, or the part that is used in files of its own"
    )
    return Issue("far more is read than used", evidence, action, facts.steady_steps, share,
                 gain_s=line_gain_s(facts), about="data")  # fmt: skip


RULES = (
    Rule("reads_beyond", "A loader reads far more for a sample than it uses",
         f"{percent(WARN_SHARE)} of the step spent waiting for data, {READ_BYTES >> 20} MiB read for a sample, "
         f"{READ_FACTOR:.0f} times the bytes that it has in its batch",
         "pictures lose less by decoding and resizing", FINDING_STEPS,
         "it is not counted what is read (only Linux counts it), or files are mapped", reads_beyond),
    Rule("repeated_samples", "Each worker gives all samples of an iterable data set",
         "the first two batches of each worker: equal among the workers, and not those of one worker",
         "what differs once is split, or drawn at random", FINDING_STEPS,
         "the loader has fewer than two workers or more than 32, or its data set is none of torch's iterable ones",
         repeated_samples),
    Rule("same_samples", "All ranks train on the same samples",
         "the first two batches of all ranks: equal, and not each other's",
         "what is the same twice is no chance, but made-up data of a benchmark", FINDING_STEPS,
         "the strategy is neither DDP nor FSDP, ranks share the work on a sample, or batches come from no loader",
         same_samples),
    Rule("same_order", "Every epoch has the same order of samples",
         "a loader with torch's DistributedSampler and shuffle=True whose `epoch` was the same in two epochs",
         "it draws the order from that number", FINDING_STEPS,
         "the loader has another sampler, or is made anew for each epoch", same_order),
    Rule("data_line", "One line takes most of what batches are made in",
         f"{percent(WARN_SHARE)} of the step spent waiting for data, and a line, the line that calls it or its "
         f"function with a third of the stack samples for certain; gains {percent(LINE_OF_STEP_SHARE)} of the step",
         "a line is changed in minutes; with more than a third no two other lines are as large; an info where "
         "it is not known what the line does and more workers help", LINE_SAMPLES,
         f"fewer than {LINE_SAMPLES} stack samples were taken, no line has {percent(LINE_SHARE)} for certain, "
         "`hand_over`, `delivery_order` or `prefetch_factor` speaks, or `host_contention` of the job's own threads",
         data_line),
)  # fmt: skip
