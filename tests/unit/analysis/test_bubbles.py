"""The bubble of pipelines, from times worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.bubbles import find_pipelines
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.analysis.stages import find_stages
from ddlprof.model.pipeline import PipelineSchedule
from ddlprof.model.records import CollectiveShape, CollectiveTimes
from ddlprof.store import load_run
from tests.golden.runs import MS, header, manifest, step, with_collectives, write_rank

STEPS = 12
FORWARD_MS, BACKWARD_MS, BATCHES = 10, 20, 4


def message(sender: int, receiver: int, own: int) -> CollectiveShape:
    op, other = ("send", receiver) if own == sender else ("recv", sender)
    return CollectiveShape(f"0:{sender}>{receiver}", op, 1000, 2, other)


def place(rank: int, **changes: object) -> PipelineSchedule:
    parts = "embed,layers*4" if rank == 0 else "layers*4,head"
    made = PipelineSchedule("ScheduleGPipe", 2, BATCHES, str(rank), "0,1", "", parts)
    return replace(made, **changes)  # type: ignore[arg-type]


def run_of(
    directory: Path, places: bool = True, wait_ms: float = FORWARD_MS + BACKWARD_MS, extra_ms: float = 0.0,
    clock: str = "host", batches: int = BATCHES, numbers: tuple[int, int] = (0, 1),
    works: bool = True,
) -> Path:  # fmt: skip
    """GPipe on two ranks. Each rank waits once in a step for the other one, in its first message from there.

    `extra_ms`: how much longer the second stage computes in a step, for which the first one waits. `works`: whether it
    computes between a message and its answer.
    """
    first, second = numbers
    for rank in numbers:
        up = [message(first, second, rank)] * BATCHES
        down = [message(second, first, rank)] * BATCHES
        shapes = up + down
        waits = wait_ms + (extra_ms if rank == first else 0)
        work = BATCHES * (FORWARD_MS + BACKWARD_MS) + (extra_ms if rank == second else 0)
        row = step(0, work, 0, 0, waits)
        rows = []
        for number in range(STEPS):
            start = number * row.step_ns
            rows.append(
                replace(
                    row, step=number, start_ns=start, microbatches=batches,
                    compute_forward_ns=round(work / 3 * MS), compute_backward_ns=round(work * 2 / 3 * MS),
                    compute_optimizer_ns=round(work * MS) - round(work / 3 * MS) - round(work * 2 / 3 * MS),
                )
            )  # fmt: skip
        waited = BATCHES if rank == first else 0  # the first stage waits for a gradient, the last for an input
        of_step = []
        for number in range(2 * BATCHES):
            own = number == waited
            begin = 40_000
            us = round(waits * 1000)
            answers = 1000 * (FORWARD_MS + BACKWARD_MS) if works and rank == second and number >= BATCHES else 0
            of_step.append(CollectiveTimes(begin, begin + us, begin, us) if own
                           else CollectiveTimes(late := begin + us + answers, late, late, 0))  # fmt: skip
        steps = [with_collectives(r, (n * BATCHES, n * BATCHES)) for n, r in enumerate(rows)]
        steps = [replace(s, **{f: getattr(r, f) for f in ("microbatches",)}) for s, r in zip(steps, rows, strict=True)]
        told = [place(numbers.index(rank), ranks=f"{first},{second}")] if places else []
        head = replace(header(rank, 2), clock=clock, origin_ns=5_000, origin_unix_ns=header().origin_unix_ns)
        write_rank(directory, head, steps, shapes, of_step * STEPS, told)
    return directory


def analysed(directory: Path) -> Attempt:
    (attempt,) = analyse(load_run(directory))
    return attempt


def means(attempt: Attempt, name: str) -> list[float | None]:
    found = [rank.summary.mean_ns(name) for rank in attempt.ranks]
    return [None if mean is None else mean / MS for mean in found]


def test_a_symmetric_exchange_is_no_pipeline(tmp_path: Path) -> None:
    """As many messages each way as micro-batches, but nobody computes between what comes and what goes."""
    attempt = analysed(run_of(tmp_path, places=False, works=False))
    assert attempt.pipelines == []
    assert means(attempt, "bubble") == [0, 0]
    assert analysed(run_of(tmp_path / "told", works=False)).pipelines  # a schedule of torch's is one


@pytest.mark.parametrize("places", [True, False])
def test_what_the_schedule_makes_a_stage_wait_is_the_bubble(tmp_path: Path, places: bool) -> None:
    """The schedule is known from its record, or by the messages."""
    attempt = analysed(run_of(tmp_path, places))
    (pipeline,) = attempt.pipelines
    assert (pipeline.ranks, pipeline.stages, pipeline.micro_batches, pipeline.virtual) == ((0, 1), 2, BATCHES, 1)
    assert means(attempt, "bubble") == pytest.approx([30, 30], abs=0.1)
    for rank in attempt.ranks:
        times = rank.times.times
        parts = np.sum([times[name] for name in ("interconnect", "network", "straggler", "bubble")], axis=0)
        assert (parts == times["comm"]).all()


def test_a_longer_wait_is_for_a_slower_stage(tmp_path: Path) -> None:
    attempt = analysed(run_of(tmp_path, extra_ms=24))
    # The mean stage takes 3 ms longer for a micro-batch, so the bubble is 33 ms; the second stage only waits 30.
    assert means(attempt, "bubble") == pytest.approx([33, 30], abs=0.1)
    waiting = [sum(pair) for pair in zip(means(attempt, "straggler"), means(attempt, "interconnect"), strict=True)]  # type: ignore[arg-type]
    assert waiting == pytest.approx([54 - 33, 0], abs=0.1)
    stages = find_stages(attempt.pipelines, {rank.data.rank: rank.summary for rank in attempt.ranks})
    assert stages is not None
    assert (stages.slowest, stages.ranks, stages.own, stages.only) == (1, (1,), (1,), ("head",))
    assert stages.longer == pytest.approx(24 / 120, rel=1e-3)
    assert stages.bubble_share == pytest.approx(1 / 5)
    assert stages.gain_s == pytest.approx((4 * 36 + 30 - 5 * 33) / 1e3, rel=1e-3)


def test_of_a_schedule_that_is_not_known_there_is_no_bubble(tmp_path: Path) -> None:
    """The waiting may be all bubble, so it is not said to be for a later rank either."""
    run_of(tmp_path)
    ranks = load_run(tmp_path).ranks
    for rank in ranks:
        rank.pipelines = [place(rank.rank, stages=4)]
    assert [pipeline.orders for pipeline in find_pipelines(ranks)] == [None]
    run_of(tmp_path / "half")
    (tmp_path / "half" / "attempt-0" / "rank-1.jsonl").unlink()
    half = analysed(tmp_path / "half")
    assert (means(half, "bubble"), means(half, "straggler")) == ([None], [None])
    assert any("bubble and straggler are empty" in note for note in half.notes)


@pytest.mark.parametrize(("strategy", "bubble"), [("ddp+pp", None), ("ddp", 0)])
def test_a_pipeline_that_is_not_recognised_has_no_bubble(tmp_path: Path, strategy: str, bubble: int | None) -> None:
    """Megatron says that there is one, but its messages are not those of one stage on each rank."""
    run = load_run(run_of(tmp_path, places=False, batches=1))
    run.manifest = manifest(2)
    run.manifest.training.strategy = strategy
    (attempt,) = analyse(run)
    assert means(attempt, "bubble") == [bubble, bubble]
    assert any("bubble and straggler are empty" in note for note in attempt.notes) == (bubble is None)


def test_a_damaged_record_tells_no_schedule(tmp_path: Path) -> None:
    ranks = load_run(run_of(tmp_path)).ranks
    ranks[0].pipelines = [place(0, order="0F0,nonsense")]
    assert [pipeline.orders for pipeline in find_pipelines(ranks)] == [None]
    ranks[0].pipelines = ranks[1].pipelines = [place(0, ranks="nobody")]
    assert [pipeline.schedule for pipeline in find_pipelines(ranks)] == [""]  # by its form


def test_other_numbers_of_messages_are_no_pipeline(tmp_path: Path) -> None:
    """As many as micro-batches go up and down in a pipeline; a ring or a halo exchange has others."""
    assert analysed(run_of(tmp_path, places=False, batches=BATCHES - 1)).pipelines == []
