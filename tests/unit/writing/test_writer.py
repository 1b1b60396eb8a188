"""The files of a rank: bounded, exact, readable wherever the writing stopped."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlprof.base import real_time
from ddlprof.model import codec
from ddlprof.model.records import (
    NEVER,
    End,
    Flag,
    LossValue,
    Note,
    RankHeader,
    Samples,
    StepRow,
)
from ddlprof.model.source_locations import SourceLine, SourceLocation
from ddlprof.store import RankData, load_run
from ddlprof.writing import writer as module
from ddlprof.writing.retention import Budget
from ddlprof.writing.writer import FinishedStep, RankWriter, rank_files
from tests.records import records_in


def header(**changes: Any) -> RankHeader:
    values: dict[str, Any] = {
        "rank": 0, "world_size": 1, "local_rank": 0, "attempt": 0, "host": "h", "node_id": "n", "pid": 1,
        "device": "cpu", "clock": "host", "origin_ns": 0, "origin_unix_ns": 0,
    }  # fmt: skip
    return RankHeader(**{**values, **changes})


def make_step(index: int, flags: int = 0, collectives: Any = (), scale: int = 1) -> FinishedStep:
    row = StepRow(
        step=index, start_ns=index * 100 * scale, step_ns=100 * scale, compute_ns=60 * scale, data_ns=20 * scale,
        data_fetch_ns=index % 7, data_prep_ns=3, h2d_ns=0, comm_ns=10 * scale, other_ns=10 * scale, microbatches=1,
        samples=8, flags=flags, compute_forward_ns=19 * scale, compute_backward_ns=31 * scale,
        compute_optimizer_ns=10 * scale, peak_memory_bytes=80 << 30,
    )  # fmt: skip
    return FinishedStep(row, list(collectives), row.start_ns, True)


def make_collective(
    seq: int, start: int = 0, group: str = "0", size: int = 1024, root: int | None = None
) -> SimpleNamespace:
    return SimpleNamespace(
        group=group, seq=seq, op="allreduce" if root is None else "broadcast", bytes=size, ranks=2, root=root,
        ready=start + 5000, end=start + 9000, need=start + 7000, exposed=2000,
    )  # fmt: skip


def lines_of(directory: Path, rank: int = 0, attempt: int = 0) -> list[tuple[str, Any]]:
    text, _ = rank_files(directory, attempt, rank)
    assert codec.decode_header(text.read_text().split("\n")[0]).rank == rank
    return [(tag, record) for tag, record in records_in(text) if tag != "f"]


def records(directory: Path, tag: str) -> list[Any]:
    return [record for kind, record in lines_of(directory) if kind == tag]


def test_the_root_of_a_rooted_operation(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    writer.step(make_step(0, 0, [make_collective(0), make_collective(1, root=3)]))
    writer.close()
    assert '["0","allreduce",1024,2],["0","broadcast",1024,2,3]' in rank_files(tmp_path, 0, 0)[0].read_text()
    (signature,) = records(tmp_path, "g")
    assert [shape.root for shape in signature.shapes] == [None, 3]


def steps_of(directory: Path) -> RankData:
    return load_run(directory).ranks[0]


@pytest.mark.parametrize("value", [None, 0, 2**32 - 2, 2**32 - 1, 2**32, 2**50 - 1])
def test_every_value_survives(tmp_path: Path, value: int | None) -> None:
    """Not measured is told from the largest number that fits."""
    writer = RankWriter(header())
    writer.open(tmp_path)
    row = make_step(0).row
    names = ("data_fetch_ns", "samples", "peak_memory_bytes", "device_lag_ns", "rollout_ns")
    rows = [replace(row, step=index, **{name: value}) for index, name in enumerate(names)]  # type: ignore[arg-type]
    for each in rows:
        writer.step(FinishedStep(each, [], 0, True))
    writer.close()
    assert steps_of(tmp_path).steps.rows() == rows


BUDGET = Budget(first=2000, later=600)


def test_a_flag_in_each_step_does_not_bypass_the_budget(tmp_path: Path) -> None:
    writer = RankWriter(header(), BUDGET)
    writer.open(tmp_path)
    for i in range(5000):
        writer.step(make_step(i, flags=Flag.EPOCH_START | (Flag.CHECKPOINT if i % 10 == 0 else 0)))
    writer.close()
    rank = steps_of(tmp_path)
    assert len(rank.steps) < 150
    assert rank.step_count == 5000
    flagged = [a for a in rank.aggregates if a.flags & Flag.CHECKPOINT]
    saved = sum(a.steps for a in flagged) + int(np.count_nonzero(rank.steps["flags"] & int(Flag.CHECKPOINT)))
    assert saved == 500


def test_the_files_of_a_year_stay_small(tmp_path: Path) -> None:
    """A budget a thousandth of the usual one, so a thousandth of the steps: 240 collectives in each, one a flush."""
    writer = RankWriter(header(), Budget(*(size // 1000 for size in Budget())))
    writer.open(tmp_path)
    steps = 30_000
    for i in range(steps):
        writer.step(make_step(i, collectives=[make_collective(240 * i + k) for k in range(240)] if i % 64 == 0 else ()))
        writer.flush()
    writer.close()
    text, rows = rank_files(tmp_path, 0, 0)
    assert rows.stat().st_size < 90_000
    assert text.stat().st_size < 10_000  # the header, and little else
    assert steps_of(tmp_path).step_count == steps


def test_all_to_alls_of_changing_sizes_keep_their_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that go to experts make other sizes in every step; there is room for so many shapes only."""
    monkeypatch.setattr(module, "_MAX_SIGNATURES", 2)
    writer = RankWriter(header())
    writer.open(tmp_path)
    for i in range(4):
        routed = make_collective(i, size=1000 + i)
        routed.op = "alltoall_base"
        writer.step(make_step(i, collectives=[routed]))
    writer.step(make_step(4, collectives=[make_collective(4, size=77)]))  # another size of what is not routed
    writer.close()
    assert [signature.shapes[0].bytes for signature in records(tmp_path, "g")] == [1000, 1001]
    rank = steps_of(tmp_path)
    assert rank.steps["signature"].tolist() == [0, 1, 0, 0, -1]
    assert len(rank.collectives) == 4


def test_times_are_relative_to_the_step(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    unfinished = make_collective(1)
    unfinished.end = unfinished.need = unfinished.exposed = None
    step = make_step(30, collectives=[make_collective(0, start=3_000_000), unfinished], scale=1000)
    writer.step(step)
    writer.close()
    table = steps_of(tmp_path).collectives
    columns = (table.ready_us, table.end_us, table.need_us, table.exposed_us)
    assert [column.tolist() for column in columns] == [[5, 0], [9, NEVER], [7, NEVER], [2, NEVER]]


def test_size_on_disk(tmp_path: Path) -> None:
    """At most 200 bytes a step and 16 a collective, also late in a long run of long steps, written one at a time."""
    writer = RankWriter(header())
    writer.open(tmp_path)
    files = rank_files(tmp_path, 0, 0)
    writer.step(make_step(0, collectives=[make_collective(k) for k in range(20)]))
    writer.flush()
    before = sum(path.stat().st_size for path in files)
    steps = 500
    for i in range(900_000_000, 900_000_000 + steps):
        big = make_step(i, flags=127, collectives=[make_collective(20 * i + k) for k in range(20)], scale=10**8)
        writer.step(big)
        writer.flush()
    assert sum(path.stat().st_size for path in files) - before <= (200 + 16 * 20) * steps


def test_a_kill_after_any_byte_leaves_whole_blocks_before_it(tmp_path: Path) -> None:
    """What explains a step is on disk before the step is, and a torn end is only the end."""
    writer = RankWriter(header(world_size=2))
    writer.open(tmp_path)
    text, steps = rank_files(tmp_path, 0, 0)
    ends = [0]
    for i in range(4):
        writer.step(make_step(i, collectives=[make_collective(3 * i + k) for k in range(3)]))
        writer.flush()
        ends.append(steps.stat().st_size)
    content = steps.read_bytes()
    for length in range(len(content) + 1):
        steps.write_bytes(content[:length])
        rank = steps_of(tmp_path)
        whole = sum(end <= length for end in ends[1:])
        assert (len(rank.steps), len(rank.collectives), rank.notes) == (whole, 3 * whole, [])
    assert b'"g"' in text.read_bytes()


class FailingDisk:
    """Makes writes to one or both of the files fail for a while, some of them halfway."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.room: float = math.inf
        self._error = OSError(number, os.strerror(number))
        self._write = os.write
        patch.setattr(os, "write", self.write)

    def write(self, file: int, data: Any) -> int:
        if not self.room:
            raise self._error
        part = bytes(data)[: int(min(self.room, len(data)))]
        self.room -= len(part)
        return self._write(file, part)


@pytest.mark.parametrize("room", [0, 1, 50, 133, 1000])
def test_a_write_that_fails_is_tried_again_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    now = 0.0
    monkeypatch.setattr(real_time.time, "perf_counter", lambda: now)
    writer = RankWriter(header(world_size=2))
    writer.open(tmp_path)
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch, errno.ESTALE)
        for i in range(1000):
            now += 1
            if i == 40:
                disk.room = room
            if i == 140:
                disk.room = math.inf
            writer.step(make_step(i, collectives=[make_collective(i)]))
            writer.context(LossValue(i, 1.0))
            writer.flush()
    writer.context(End("ok", 0, 17))
    writer.close()
    assert writer.failure is None
    rank = steps_of(tmp_path)
    assert rank.steps["step"].tolist() == list(range(1000))
    assert rank.collectives.seq.tolist() == list(range(1000))
    assert [loss.update for loss in rank.training_loss] == list(range(1000))
    assert rank.end == End("ok", 0, 17)
    (note,) = rank.notes
    assert note.source == "files"
    assert note.message.startswith(f"{os.strerror(errno.ESTALE)}: for ")
    assert note.message.endswith("0 steps of it are there as sums, 0 other lines are lost")


def test_what_is_held_while_nothing_can_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_HELD_BYTES", 20_000)
    now = 0.0
    monkeypatch.setattr(real_time.time, "perf_counter", lambda: now)
    writer = RankWriter(header())
    writer.open(tmp_path)
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch)
        disk.room = 0
        for i in range(3000):
            now += 1
            collectives = [make_collective(i)] if i in (1, 2999) or i % 1000 == 500 else []
            writer.step(make_step(i, collectives=collectives))
            writer.context(LossValue(i, 1.0))
            writer.flush()
            assert writer._steps.size < 21_000
            assert writer._lines_size < 21_000
        writer.samples(2999, {SourceLocation("train.py:3 f"): 2})  # its place is kept, though the samples are lost
        disk.room = math.inf
        now += 100
        writer.flush()
    writer.step(make_step(3000, collectives=[make_collective(3000), make_collective(3001, group="1")]))
    writer.samples(3000, {SourceLocation("train.py:3 f"): 1})
    writer.close()
    rank = steps_of(tmp_path)
    assert rank.samples == [(3000, SourceLocation("train.py:3 f"), 1)]
    assert rank.untold is None or not rank.untold.any()
    assert rank.collectives.seq.tolist() == [1, 3000, 3001]
    assert rank.step_count == 3001
    assert 0 < len(rank.steps) < 300
    assert int(rank.steps["step_ns"].sum()) + sum(a.step_ns for a in rank.aggregates) == 3001 * 100
    (note,) = rank.notes
    summed = 3001 - len(rank.steps)
    lost = 3000 - len(rank.training_loss) + 1  # and the first samples
    assert note.message.endswith(f"{summed} steps of it are there as sums, {lost} other lines are lost")


def test_a_disk_that_stays_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_PAUSE_S", 0)
    writer = RankWriter(header())
    writer.open(tmp_path)
    writer.step(make_step(0))
    writer.flush()
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch)
        disk.room = 100
        for i in range(1, 10):
            writer.step(make_step(i))
        writer.flush()
        assert writer.failure is None
        writer.close()
    assert writer.failure == "No space left on device while writing the run"
    assert steps_of(tmp_path).steps["step"].tolist() == [0]


def test_files_of_another_are_never_written_over(tmp_path: Path) -> None:
    first = RankWriter(header())
    first.open(tmp_path)
    first.close()
    with pytest.raises(FileExistsError):
        RankWriter(header()).open(tmp_path)
    other = RankWriter(header(attempt=1, rank=3))
    other.open(tmp_path)
    other.close()
    assert lines_of(tmp_path, rank=3, attempt=1) == []


def test_samples_and_notes_and_end(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    f, g = SourceLocation("train.py:3 f"), SourceLocation("train.py:9 g", "logging")
    writer.samples(1, {f: 2, g: 1})
    writer.samples(4, {g: 4})
    writer.samples(5, {})
    for _ in range(3):
        writer.note("data", "not measured: why")
    writer.context(End("ok", 0, 17))
    writer.close()
    assert records(tmp_path, "l") == [SourceLine(0, "train.py:3 f"), SourceLine(1, "train.py:9 g", "logging")]
    assert records(tmp_path, "q") == [Samples(1, (0, 2, 1, 1)), Samples(4, (1, 4))]
    assert records(tmp_path, "n") == [Note("data", "not measured: why")]
    assert records(tmp_path, "e") == [End("ok", 0, 17)]
