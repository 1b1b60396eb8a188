"""Advice as lines of plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ddlprof.base.text import plain, text_of
from ddlprof.base.units import count, long_time, percent, significant, times
from ddlprof.extensions.cluster.advice import Advice, Estimated, SpreadCost
from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.report.advice.data import JobAdvice, rounded_s
from ddlprof.recommender.target import format_placement
from ddlprof.report.text import aligned, labelled, wrapped

_WIDTH = 110
_labelled = partial(labelled, width=_WIDTH)
_WHERE = {Level.RACK: "machines of a rack", Level.NETWORK: "several racks"}
_NEARER = {Level.RACK: "one machine", Level.NETWORK: "one rack"}


def render(jobs: Sequence[JobAdvice]) -> str:
    """The page, ending with a line end."""
    lines = wrapped(count(len(jobs), "job"), _WIDTH, "ddlprof  cluster advise ")
    for job in jobs:
        lines += ["", *_job(job)]
    return text_of([*lines, *_order(jobs), *_scaling_order(jobs)])


def _order(jobs: Sequence[JobAdvice]) -> Iterator[str]:
    """Which of several jobs to place closer first: those that lose the most GPU-hours."""
    lost = [
        (loss.wait_share.times(job.rest_s * job.advice.gpus / 3600), job.advice, loss)
        for job in jobs
        for loss in job.advice.losses
        if loss.wait_share is not None and job.rest_s is not None
    ]
    if len({id(advice) for _, advice, _ in lost}) < 2:
        return
    lost.sort(key=lambda each: -each[0].mean)
    rows = [["PLACE CLOSER FIRST", "GPUS", "SPREAD OVER", "GPU-HOURS THAT IT COSTS [80 %]"]]
    for hours, advice, loss in lost:
        cost = significant(hours.mean) + _interval(hours, significant)
        rows.append([advice.name, f"{advice.gpus:,}", _WHERE[loss.level], cost])
    yield ""
    yield from aligned(rows, right={1})


def _scaling_order(jobs: Sequence[JobAdvice]) -> Iterator[str]:
    """Which of several jobs to give more GPUs first: those that come nearest to twice as fast. Without those that would
    be slower."""
    scaled = [(job.advice, job.advice.scaled) for job in jobs if job.advice.scaled is not None]
    known = [(each.speed_up, each.gpus, advice) for advice, each in scaled if each.speed_up and each.speed_up.mean > 1]
    if len(known) < 2:
        return
    known.sort(key=lambda each: -each[0].mean)
    rows = [["SCALE FIRST", "GPUS", "AS FAST WITH TWICE AS MANY [80 %]"]]
    rows += [[advice.name, f"{advice.gpus:,} -> {gpus:,}", _ratio(faster)] for faster, gpus, advice in known]
    yield ""
    yield from aligned(rows, right={1})


def _scaling(job: JobAdvice) -> Iterator[str]:
    """What twice as many GPUs would do, without another batch of an update."""
    scaled = job.advice.scaled
    if scaled is None:
        return
    on = f"{count(scaled.gpus, 'GPU')} ({format_placement(scaled.placement)})"
    if scaled.speed_up is None:
        yield from _labelled("Scaling", f"to {on}: {scaled.why_not}")
        return
    said = f"{_ratio(scaled.speed_up)} as fast on {on} with the same global batch"
    if job.rest_s is not None:
        rest = long_time(rounded_s(job.rest_s / scaled.speed_up.mean))
        said += f": the rest takes {rest} in place of {long_time(rounded_s(job.rest_s))}"
    yield from _labelled("Scaling", said)


def _job(job: JobAdvice) -> Iterator[str]:
    advice = job.advice
    closest = f"{count(advice.gpus, 'GPU')}, at best on {count(len(advice.closest), 'machine')}"
    yield from _labelled("Job", f"{advice.name} · {closest} ({format_placement(advice.closest)})")
    if advice.gpus == 1:
        yield "Placing  one GPU: there is nothing to spread"
        yield from _scaling(job)
        return
    if advice.step_s is not None:
        yield f"Step     {long_time(advice.step_s) if advice.step_s >= 60 else f'{advice.step_s * 1e3:,.1f} ms'} there"
    known = [loss for loss in advice.losses if loss.slowdown is not None]
    if known:
        rows = [["SPREAD OVER", "GPUS", "STEP [80 %]", "WORTH WAITING FOR", "AT MOST"]]
        rows += [[_WHERE[loss.level], *_cells(job, loss)] for loss in known]
        yield from aligned(rows)
    yield from _scaling(job)
    for loss in advice.losses:
        if loss.why_not:
            yield from _labelled("Unknown", f"{_WHERE[loss.level]}: {loss.why_not}")
    for sentence in advice.basis if any(loss.slowdown and loss.slowdown.low for loss in known) else ():
        yield from _labelled("Rests on", sentence)


def _cells(job: JobAdvice, loss: SpreadCost) -> Iterator[str]:
    yield format_placement(loss.placement)
    yield _ratio(loss.slowdown)
    yield _NEARER[loss.level]
    wait_s = job.wait_s(loss)
    if wait_s is not None:
        yield wait_words(wait_s)
    elif loss.wait_share is None:
        yield "not known"
    else:
        share = loss.wait_share
        yield f"{percent(share.mean)}{_interval(share, percent)} of the rest of the run"


def wait_words(wait_s: Estimated) -> str:
    """`10 h 0 min [4 h 0 min - 20 h 0 min]`."""

    def words(seconds: float) -> str:
        return long_time(rounded_s(seconds))

    return words(wait_s.mean) + _interval(wait_s, words)


def _interval(worth: Estimated, words: Callable[[float], str]) -> str:
    return "" if worth.low is None or worth.high is None else f" [{words(worth.low)} - {words(worth.high)}]"


def _ratio(found: Estimated | None) -> str:
    """`1.42x [1.20-1.80]`, or `1.42x measured`."""
    if found is None:
        return "not known"
    if found.low is None or found.high is None:
        return f"{times(found.mean)} measured"
    return f"{times(found.mean)} [{found.low:.2f}-{found.high:.2f}]"


def spread_comments(advice: Advice) -> Iterator[str]:
    """The cost of spreading a job, as comments for a scheduler's file."""
    for loss in advice.losses:
        where = "machines of a rack" if loss.level == Level.RACK else "racks"
        reason = f", {plain(loss.why_not)}" if loss.why_not else ""
        yield f"spread over {where}: step {_ratio(loss.slowdown)}{reason}"
