"""The parts of a job's wall time: each second once, in the part that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.job_time import JOB_PARTS, JobTime, Skipped, job_time
from ddlprof.analysis.run import analyse
from ddlprof.model.records import Aggregate, End, Flag, JobSpan, RankHeader, StepRow
from ddlprof.store import RankData, RunData
from ddlprof.store.tables import StepTable
from tests.golden.runs import MS, header, step

STEPS = 40
START_MS = 1000


def rows_of(longer: Mapping[int, tuple[int, dict[str, Any]]] | None = None, steps: int = STEPS) -> list[StepRow]:
    """Steps of 10 ms each; `longer`: by step, its flags and other arguments of `step`."""
    rows, now = [], float(START_MS)
    for number in range(steps):
        flags, times = (longer or {}).get(number, (0, {}))
        row = step(number, flags=flags, start_ms=now, **times)
        rows.append(row)
        now += row.step_ns / MS
    return rows


def rank_of(
    rows: Sequence[StepRow], spans: Sequence[tuple[str, float, float]] = (), head: RankHeader | None = None, **more: Any
) -> RankData:
    """`spans`: what, and begin and end in milliseconds since the origin."""
    head = head or replace(header(), age_ns=200 * MS, spans=True)
    last = rows[-1].start_ns + rows[-1].step_ns if rows else 0
    end = {"end": End("ok", 0, last + 300 * MS), **more}
    records = [JobSpan(what, round(begin * MS), round((end - begin) * MS)) for what, begin, end in spans]
    return RankData(head, StepTable.from_rows(rows), spans=records, **end)


def job_of(*ranks: RankData) -> JobTime:
    (attempt,) = analyse(RunData(("run",), None, list(ranks)))
    job = job_time(attempt)
    assert job is not None
    assert list(job.parts_s) == list(JOB_PARTS)
    assert sum(seconds or 0 for seconds in job.parts_s.values()) == pytest.approx(job.wall_s, abs=1e-9)
    return job


def shown(job: JobTime) -> dict[str, float]:
    return {part: round(seconds, 6) for part, seconds in job.parts_s.items() if seconds}


def test_a_plain_job() -> None:
    job = job_of(rank_of(rows_of()))
    assert shown(job) == {"start_up": 1.2, "steps": 0.4, "end": 0.3}
    assert job.wall_s == pytest.approx(1.9)
    assert (job.evaluations, job.checkpoints, job.epochs, job.steps) == (0, 0, 0, 40)
    assert (job.until, job.timed, job.attempt) == ("end", True, 0)
    assert job.share("start_up") == pytest.approx(1.2 / 1.9)


def test_the_first_steps_and_first_batches_take_longer() -> None:
    long = {
        0: (Flag.EPOCH_START, {"data_ms": 501, "compute_ms": 108}),
        20: (Flag.EPOCH_START, {"data_ms": 301, "other_ms": 201}),
        30: (Flag.TRACED, {"other_ms": 51}),
    }
    job = job_of(rank_of(rows_of(long)))
    assert shown(job) == {
        "start_up": 1.2,
        "steps": 0.4,
        "warm_up": 0.1,
        "epoch_start": 0.8,
        "profiling": 0.05,
        "idle": 0.2,
        "end": 0.3,
    }
    assert job.epochs == 2


def test_without_a_loader_no_epoch_is_seen() -> None:
    assert job_of(rank_of(rows_of(dict.fromkeys(range(STEPS), (0, {"data_ms": None}))))).epochs is None


def test_another_rank_evaluates_while_the_first_waits() -> None:
    waits = {10: (0, {"comm_ms": 1000})}
    evaluates = {10: (int(Flag.EVALUATION), {"other_ms": 1001})}
    first = rank_of(rows_of(waits), head=replace(header(0, 2), age_ns=200 * MS, spans=True))
    other = rank_of(
        rows_of(evaluates), [("evaluation", 1100, 2100)], replace(header(1, 2), age_ns=150 * MS, spans=True)
    )
    job = job_of(first, other)
    # Rank 1 begins a millisecond later, and the job ends with it.
    assert shown(job) == {"start_up": 1.2, "steps": 0.4, "evaluation": 1.0, "end": 0.301}
    assert job.evaluations == 1
    assert job.trains_on
    assert job == job_of(other, first)


def test_after_the_last_evaluation_nothing_may_be_trained() -> None:
    last = START_MS + 10 * (STEPS - 1)
    assert not job_of(rank_of(rows_of(), [("evaluation", last + 9, last + 200)])).trains_on
    assert not job_of(rank_of(rows_of(), [("checkpoint", last - 9, last)])).trains_on


def test_a_killed_job_goes_until_its_last_entry() -> None:
    job = job_of(rank_of(rows_of(), [("checkpoint", 1400, 1450)], end=None))
    assert shown(job) == {"start_up": 1.2, "steps": 0.4, "checkpoint": 0.05}
    assert job.until == "entry"


def test_an_older_run_tells_by_the_flags_of_its_steps() -> None:
    long = {10: (Flag.EVALUATION, {"other_ms": 1001}), 20: (Flag.CHECKPOINT, {"other_ms": 101})}
    job = job_of(rank_of(rows_of(long), head=header()))
    assert shown(job) == {"start_up": 1.0, "steps": 0.4, "evaluation": 1.0, "checkpoint": 0.1, "end": 0.3}
    assert job.parts_s["compilation"] is None
    assert (job.evaluations, job.checkpoints, job.timed) == (1, 1, False)
    plain = job_of(rank_of(rows_of(), head=header()))
    assert plain.parts_s["evaluation"] is None
    assert plain.evaluations is None


def test_a_flag_of_most_steps_is_no_exception() -> None:
    often = {n: (int(Flag.EVALUATION), {"other_ms": 6}) for n in range(STEPS)}
    spans = [("evaluation", START_MS + 15 * n, START_MS + 15 * n + 5) for n in range(STEPS)]
    job = job_of(rank_of(rows_of(often), spans))
    assert shown(job) == {"start_up": 1.2, "steps": 0.4, "evaluation": 0.2, "end": 0.3}
    assert job.evaluations == STEPS


def test_steps_kept_as_sums_count_as_steps() -> None:
    rows = [row for row in rows_of(steps=60) if row.step < 40 or row.step == 50]

    def summed(first: int, steps: int) -> Aggregate:
        step_ns, compute_ns, data_ns = (steps * each * MS for each in (10, 8, 1))
        return Aggregate(first, steps, step_ns, compute_ns, data_ns, None, None, 0, 0, data_ns, 0, 0)

    job = job_of(rank_of(rows, aggregates=[summed(40, 10), summed(51, 9)]))
    assert shown(job) == {"start_up": 1.2, "steps": 0.6, "end": 0.21}
    assert job.steps == 60


def test_time_between_two_steps_is_idle() -> None:
    rows = rows_of()
    rows[20:] = [replace(row, start_ns=row.start_ns + 70 * MS) for row in rows[20:]]
    assert shown(job_of(rank_of(rows))) == {"start_up": 1.2, "steps": 0.4, "idle": 0.07, "end": 0.3}


def many_batches(samples: Mapping[int, int | None], first: int = 0, flag: int = 0, micro_batches: int = 1) -> RankData:
    """Steps with batches of 32 samples, but for these; the step `first` waits 2 s for its data."""
    rows = rows_of({first: (int(flag), {"data_ms": 2000})})
    for number, of_step in samples.items():
        rows[number] = replace(rows[number], samples=of_step)
    rows[first] = replace(rows[first], microbatches=micro_batches)
    return rank_of(rows)


@pytest.mark.parametrize(("batches", "skipped"), [(200, Skipped(199, 1.99)), (2, Skipped(1, 1.0))])
def test_batches_before_the_first_step(batches: int, skipped: Skipped) -> None:
    found = job_of(many_batches({0: 32 * batches, 30: 5})).skipped
    assert found is not None
    assert found.batches == skipped.batches
    assert found.seconds == pytest.approx(skipped.seconds)


@pytest.mark.parametrize("rank", [
    many_batches({0: 32 * 200}, micro_batches=200),  # an update of many micro-batches
    many_batches({0: 40}),
    many_batches({0: 32 * 200}, flag=Flag.EVALUATION),
    many_batches({20: 32 * 200}, first=20),  # forwards alone, as update_bn's after each epoch
    many_batches({n: 8 + 2 * (n % 2) for n in range(STEPS)} | {0: 512}),  # of so many tokens, not samples
    many_batches({0: 32 * 11} | dict.fromkeys(range(30, STEPS), 0)),  # a buffer, which the last steps empty
    many_batches({0: 32 * 11} | dict.fromkeys(range(30, STEPS))),
])  # fmt: skip
def test_no_batches_are_taken_for_nothing(rank: RankData) -> None:
    assert job_of(rank).skipped is None


@pytest.mark.parametrize(("flag", "samples", "several"), [
    (Flag.EPOCH_START, 32 * 11, True),
    (Flag.EPOCH_START, 32, False),
    (Flag.EPOCH_START | Flag.EVALUATION, 32 * 11, False),  # on them
    (0, 32 * 11, False),
])  # fmt: skip
def test_a_first_step_of_an_epoch_that_takes_several_batches(flag: int, samples: int, several: bool) -> None:
    assert job_of(many_batches({20: samples}, first=20, flag=flag)).several_first is several


def test_nothing_is_known_of_a_job_without_steps() -> None:
    (attempt,) = analyse(RunData(("run",), None, [rank_of([])]))
    assert job_time(attempt) is None
