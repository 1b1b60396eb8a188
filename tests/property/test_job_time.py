"""Whatever steps and spans a file has, the parts of the wall time are not negative and add up to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.analysis.job_time import JOB_PARTS, JobTime, job_time
from ddlprof.analysis.run import analyse
from ddlprof.model.records import SPANS, Aggregate, End, JobSpan, StepRow
from ddlprof.store import RankData, RunData
from ddlprof.store.tables import StepTable
from tests.golden.runs import header

times = st.integers(0, 2**36)
spans = st.lists(st.builds(JobSpan, st.sampled_from(SPANS), st.integers(-(2**36), 2**37), times), max_size=12)
steps = st.lists(st.tuples(times, st.integers(0, 127), st.booleans()), min_size=1, max_size=12)
ends = st.none() | st.builds(End, st.sampled_from(["ok", "exception", "stopped"]), st.just(0), st.integers(-9, 2**38))


@st.composite
def ranks(draw: st.DrawFn, number: int, world_size: int, timed: bool) -> RankData:
    now, rows, aggregates = draw(times), [], []
    for index, (took, flags, summed) in enumerate(draw(steps)):
        if summed and index:
            aggregates.append(Aggregate(index, 1, took, took, 0, None, None, 0, 0, 0, 1, None))
        else:
            data = draw(st.integers(0, took))
            rows.append(StepRow(index, now, took, took - data, data, None, None, 0, 0, 0, 1, 8, flags))
        now += took + draw(st.sampled_from([0, 0, 0, -5, 10**9]))
    head = replace(header(number, world_size), age_ns=draw(st.none() | times), spans=timed)
    rank = RankData(head, StepTable.from_rows([row for row in rows if row.start_ns >= 0]), end=draw(ends))
    rank.aggregates, rank.spans = aggregates, draw(spans) if timed else []
    return rank


@st.composite
def jobs(draw: st.DrawFn) -> list[RankData]:
    world_size, timed = draw(st.integers(1, 3)), draw(st.booleans())
    return [draw(ranks(number, world_size, timed)) for number in range(world_size)]


def job_of(data: list[RankData]) -> JobTime | None:
    (attempt,) = analyse(RunData(("run",), None, data))
    return job_time(attempt)


@settings(deadline=None, max_examples=40)
@given(jobs())
def test_the_parts_add_up(data: list[RankData]) -> None:
    job = job_of(data)
    if job is None:
        return
    assert list(job.parts_s) == list(JOB_PARTS)
    nanoseconds = [round((seconds or 0) * 1e9) for seconds in job.parts_s.values()]
    assert min(nanoseconds) >= 0
    assert sum(nanoseconds) == round(job.wall_s * 1e9)


@settings(deadline=None, max_examples=40)
@given(jobs(), st.integers(-(10**17), 10**17), st.randoms(use_true_random=False))
def test_neither_the_clock_nor_the_order_of_ranks_matters(data: list[RankData], shift: int, random: object) -> None:
    before = job_of(data)
    moved = [
        replace(each, header=replace(each.header, origin_unix_ns=each.header.origin_unix_ns + shift)) for each in data
    ]
    random.shuffle(moved)  # type: ignore[attr-defined]
    assert job_of(moved) == before
