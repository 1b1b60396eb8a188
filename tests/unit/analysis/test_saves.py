"""What a rank does after its checkpoints, and what in the same steps is something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.job_time import job_time
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.analysis.saves import after_saves, lone_evaluator
from ddlprof.model import codec, source_locations
from ddlprof.model.records import Flag, JobSpan
from ddlprof.model.source_locations import SourceLine
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank

STEPS, STEP_MS, WRITING_MS = 60, 100, 5


def saved(
    directory: Path, longer_ms: int, waits_ms: int, what: str = source_locations.SLEEP, also: int = 0, every: int = 10
) -> Attempt:
    """Rank 0 writes every tenth step and takes longer; rank 1 waits for it."""
    for rank in (0, 1):
        rows, records, lines, at_ms = [], [], [codec.encode(SourceLine(0, "train.py:9 main", what))], 0
        for number in range(STEPS):
            saves = number % every == every - 1
            flags = (int(Flag.CHECKPOINT) if rank == 0 else 0) | also if saves else 0
            other, comm = (longer_ms + WRITING_MS, 1) if rank == 0 else (1, waits_ms)
            other, comm = (other, comm) if saves else (1, 1)
            rows.append(step(number, STEP_MS, 0, other, comm, flags, at_ms))
            if saves and rank == 0:
                records.append(JobSpan("checkpoint", at_ms * MS, WRITING_MS * MS))
                lines.append(codec.encode_samples(number, {0: 7}))
            at_ms += other + comm + STEP_MS
        write_rank(directory, replace(header(rank, 2), spans=True), rows, records=records, lines=lines)
    (attempt,) = analyse(load_run(directory))
    return attempt


@pytest.mark.parametrize(("evaluating", "spans", "found"), [
    ((1,), True, 1), ((0, 1), True, None), ((), True, None), ((1,), False, None),
])  # fmt: skip
def test_the_only_rank_that_evaluates(
    tmp_path: Path, evaluating: tuple[int, ...], spans: bool, found: int | None
) -> None:
    for rank in (0, 1):
        rows = [step(number, STEP_MS, 0, 1, 1, 0, number * STEP_MS) for number in range(STEPS)]
        records = [JobSpan("evaluation", 5 * STEP_MS * MS, MS)] if rank in evaluating else []
        write_rank(tmp_path, replace(header(rank, 2), spans=spans), rows, records=records)
    (attempt,) = analyse(load_run(tmp_path))
    assert lone_evaluator(attempt.ranks) == found


def test_an_upload_for_which_the_others_wait(tmp_path: Path) -> None:
    attempt = saved(tmp_path, 600, 605)
    found = after_saves(attempt.ranks)
    assert found is not None
    assert (found.rank, found.number) == (0, 6)
    assert found.seconds == pytest.approx(0.6, rel=0.01)
    assert found.written_s == pytest.approx(0.005)
    assert found.line is not None
    assert found.line.text == "train.py:9 main"
    job = job_time(attempt)
    assert job is not None
    assert job.parts_s["checkpoint"] == pytest.approx(6 * 0.605, rel=0.01)
    assert job.parts_s["idle"] == pytest.approx(0, abs=0.05)


def test_states_that_are_collected_for_the_checkpoint_of_another_rank_are_no_upload(tmp_path: Path) -> None:
    attempt = saved(tmp_path, 600, 605)
    (first, second) = attempt.ranks
    longer = [replace(span, duration_ns=3 * span.duration_ns) for span in first.data.spans]
    alike = [replace(span, duration_ns=2 * span.duration_ns) for span in first.data.spans]
    writers = []
    for spans in (longer, alike):
        other = replace(second, data=replace(second.data, spans=spans))
        found = after_saves([first, other])
        assert found is not None
        writers.append((found.rank, found.writer))
    assert writers == [(0, 1), (0, None)]  # those who write a part each take about as long


def test_what_the_others_do_not_wait_for_costs_nothing(tmp_path: Path) -> None:
    assert after_saves(saved(tmp_path, 600, 1).ranks) is None


@pytest.mark.parametrize("what", [source_locations.EVALUATION, source_locations.LOGGING])
def test_an_evaluation_in_the_same_step_is_no_upload(what: str, tmp_path: Path) -> None:
    attempt = saved(tmp_path, 600, 605, what)
    assert after_saves(attempt.ranks) is None
    job = job_time(attempt)
    assert job is not None
    assert job.parts_s["checkpoint"] == pytest.approx(6 * 0.005)


def test_unusual_steps_are_left_out(tmp_path: Path) -> None:
    assert after_saves(saved(tmp_path, 600, 605, also=int(Flag.EVALUATION)).ranks) is None


def test_one_checkpoint_is_no_habit(tmp_path: Path) -> None:
    assert after_saves(saved(tmp_path, 600, 605, every=STEPS - 10).ranks) is None


def test_a_job_that_saves_nothing(tmp_path: Path) -> None:
    assert after_saves(saved(tmp_path, 600, 605, every=STEPS + 1).ranks) is None
