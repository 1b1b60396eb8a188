"""The files of a rank: bounded, exact, readable wherever the writing stopped."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect import writer as module
from ddlprof.collect.steps.sums import Step
from ddlprof.collect.writer import RankWriter, rank_files
from ddlprof.model import codec
from ddlprof.model.records import (
    NEVER,
    CollectiveTimes,
    End,
    Flag,
    Note,
    RankHeader,
    Samples,
    SourceLine,
    StepRow,
)
from ddlprof.model.source_places import SourcePlace

SUMMED = (
    "step_ns", "compute_ns", "data_ns", "data_fetch_ns", "data_prep_ns", "h2d_ns", "comm_ns", "other_ns",
    "microbatches", "samples",
)  # fmt: skip


def times_in(path: Path) -> list[CollectiveTimes]:
    return [CollectiveTimes(*values) for values in struct.iter_unpack("<4I", path.read_bytes())]


def header(**changes: Any) -> RankHeader:
    values: dict[str, Any] = {
        "rank": 0, "world_size": 1, "local_rank": 0, "attempt": 0, "host": "h", "node_id": "n", "pid": 1,
        "device": "cpu", "clock": "host", "origin_ns": 0, "origin_unix_ns": 0,
    }  # fmt: skip
    return RankHeader(**{**values, **changes})


def make_step(index: int, flags: int = 0, collectives: Any = (), scale: int = 1) -> Step:
    row = StepRow(
        step=index, start_ns=index * 100 * scale, step_ns=100 * scale, compute_ns=60 * scale, data_ns=20 * scale,
        data_fetch_ns=index % 7, data_prep_ns=3, h2d_ns=0, comm_ns=10 * scale, other_ns=10 * scale, microbatches=1,
        samples=8, flags=flags, compute_forward_ns=19 * scale, compute_backward_ns=31 * scale,
        compute_optimizer_ns=10 * scale, peak_memory_bytes=80 << 30,
    )  # fmt: skip
    return Step(row, list(collectives), row.start_ns, True)


def make_collective(
    seq: int, start: int = 0, group: str = "0", size: int = 1024, root: int | None = None
) -> SimpleNamespace:
    return SimpleNamespace(
        group=group, seq=seq, op="allreduce" if root is None else "broadcast", bytes=size, ranks=2, root=root,
        ready=start + 5000, end=start + 9000, need=start + 7000, exposed=2000,
    )  # fmt: skip


def lines_of(directory: Path, rank: int = 0, attempt: int = 0) -> list[tuple[str, Any]]:
    text, _ = rank_files(directory, attempt, rank)
    first, *rest = text.read_text().splitlines()
    assert codec.decode_header(first).rank == rank
    return [(tag, record) for tag, record in map(codec.decode, rest) if tag != "f"]


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


def test_rows_as_they_came(tmp_path: Path) -> None:
    writer = RankWriter(header())
    steps = [make_step(i) for i in range(5)]
    writer.step(steps[0])
    writer.open(tmp_path)  # what came before is written too
    for step in steps[1:]:
        writer.step(step)
    writer.close()
    assert records(tmp_path, "s") == [step.row for step in steps]


def test_past_the_cap_every_kth_row_is_kept_and_the_sums_are_exact(tmp_path: Path) -> None:
    writer = RankWriter(header(), cap_steps=10)
    writer.open(tmp_path)
    rows = [make_step(i, flags=Flag.CHECKPOINT if i == 33 else 0).row for i in range(200)]
    for row in rows:
        writer.step(Step(row, [], row.start_ns, True))
    writer.close()
    kept, sums = records(tmp_path, "s"), records(tmp_path, "a")
    assert [row.step for row in kept[:15]] == [*range(10), 10, 12, 14, 16, 18]
    assert rows[33] in kept  # unusual steps are always kept
    assert len(kept) < 60
    assert sum(s.steps for s in sums) + len(kept) == len(rows)
    for name in SUMMED:
        assert sum(getattr(x, name) for x in [*kept, *sums]) == sum(getattr(row, name) for row in rows)
    for s in sums:
        assert not any(s.first_step <= row.step < s.first_step + s.steps for row in kept)


def test_an_unmeasured_class_stays_unmeasured_in_the_sums(tmp_path: Path) -> None:
    writer = RankWriter(header(), cap_steps=1)
    writer.open(tmp_path)
    for i in range(8):
        row = make_step(i).row
        values = {name: getattr(row, name) for name in row.__slots__}
        row = StepRow(**{**values, "data_fetch_ns": None if i == 3 else 1})
        writer.step(Step(row, [], 0, True))
    writer.close()
    sums = records(tmp_path, "a")
    assert {s.first_step: s.data_fetch_ns for s in sums}[3] is None
    assert any(s.data_fetch_ns is not None for s in sums)


def test_shapes_of_collectives_are_written_once(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    for i in range(4):
        writer.step(make_step(i, collectives=[make_collective(2 * i), make_collective(2 * i + 1, group="1")]))
    writer.step(make_step(4, collectives=[make_collective(8)]))
    writer.close()
    assert [signature.number for signature in records(tmp_path, "g")] == [0, 1]
    assert [(row.signature, row.first_seqs) for row in records(tmp_path, "s")] == [
        (0, (0, 1)), (0, (2, 3)), (0, (4, 5)), (0, (6, 7)), (1, (8,)),
    ]  # fmt: skip
    _, times = rank_files(tmp_path, 0, 0)
    assert len(times_in(times)) == 9


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
    assert [row.signature for row in records(tmp_path, "s")] == [0, 1, 0, 0, -1]
    _, times = rank_files(tmp_path, 0, 0)
    assert len(times_in(times)) == 4


def test_times_are_relative_to_the_step(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    unfinished = make_collective(1)
    unfinished.end = unfinished.need = unfinished.exposed = None
    step = make_step(30, collectives=[make_collective(0, start=3_000_000), unfinished], scale=1000)
    writer.step(step)
    writer.close()
    _, times = rank_files(tmp_path, 0, 0)
    assert times_in(times) == [
        CollectiveTimes(5, 9, 7, 2),
        CollectiveTimes(0, NEVER, NEVER, NEVER),
    ]


def test_size_on_disk(tmp_path: Path) -> None:
    """At most 200 bytes a step and 16 a collective, also late in a long run of long steps."""
    writer = RankWriter(header())
    writer.open(tmp_path)
    text, times = rank_files(tmp_path, 0, 0)
    writer.step(make_step(0, collectives=[make_collective(k) for k in range(20)]))
    writer.flush()
    before = text.stat().st_size
    steps = 500
    for i in range(900_000_000, 900_000_000 + steps):
        big = make_step(i, flags=127, collectives=[make_collective(20 * i + k) for k in range(20)], scale=10**8)
        writer.step(big)
    writer.flush()
    assert text.stat().st_size - before <= 200 * steps
    assert times.stat().st_size == 16 * 20 * (steps + 1)


def test_a_kill_after_any_byte_leaves_whole_records_before_it(tmp_path: Path) -> None:
    """The collectives of a step are on disk before the step is, and a torn end is only the end."""
    writer = RankWriter(header())
    writer.open(tmp_path)
    written: list[tuple[int, int]] = []
    text, times = rank_files(tmp_path, 0, 0)
    for i in range(6):
        writer.step(make_step(i, collectives=[make_collective(3 * i + k) for k in range(3)]))
        writer.flush()
        written.append((text.stat().st_size, times.stat().st_size))
    content = text.read_bytes()
    for length in range(len(content)):
        whole = content[:length].split(b"\n")[:-1]
        steps = [codec.decode(line.decode()) for line in whole[1:] if line.startswith(b'["s"')]
        if steps:
            assert written[len(steps) - 1][1] == 16 * 3 * len(steps)


def test_full_disk_stops_the_writing_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    writer.step(make_step(0))
    writer.flush()
    room = 100
    write = os.write

    def full(file: int, data: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = bytes(data)[:room]
        room -= len(part)
        return write(file, part)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for i in range(1, 10):
            writer.step(make_step(i))
        writer.flush()
    assert writer.failure == "No space left on device while writing the run"
    for i in range(10, 2000):
        writer.step(make_step(i))
        writer.flush()
    assert not writer._lines  # a failed writer keeps nothing in memory
    writer.close()
    text, _ = rank_files(tmp_path, 0, 0)
    *whole, torn = text.read_bytes().split(b"\n")
    steps = [codec.decode(line.decode())[1].step for line in whole if line.startswith(b'["s"')]
    assert steps == list(range(len(steps)))
    assert 1 <= len(steps) < 10
    assert torn


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
    f, g = SourcePlace("train.py:3 f"), SourcePlace("train.py:9 g", "logging")
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
