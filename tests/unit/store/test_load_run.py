"""Reading run directories: whole, torn at any byte, damaged, and not there at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlprof.base.errors import UserError
from ddlprof.model import codec
from ddlprof.model.records import (
    MISSING,
    Aggregate,
    CollectiveTimes,
    ContextRow,
    End,
    LoaderCost,
    Overhead,
    WindowRow,
)
from ddlprof.model.source_locations import SourceLocation
from ddlprof.store import StepTable, load_run
from ddlprof.writing.step_buffer import StepBuffer
from tests.golden.runs import SHAPES, Record, ddp_step, header, manifest, simple_run, step, with_collectives, write_rank


def ddp_rank(directory: Path, steps: int = 6) -> Path:
    made = [ddp_step(0, n) for n in range(steps)]
    times = [t for _, ts in made for t in ts]
    end = End("ok", 0, 10**9)
    return write_rank(directory, header(0, 2), [row for row, _ in made], SHAPES, times, [end])


def test_reads_what_was_written(tmp_path: Path) -> None:
    looking = Overhead(1, 2, 3, 4)
    records: list[Record] = [
        Aggregate(6, 10, 100, 90, None, None, None, 0, 0, 10, 10, None),
        ContextRow(7, 1.5, None, 3, None, None, None),
        WindowRow(50, 2, 100, 80, 10),
        Overhead(0, 1, 0, 1),
        looking,
        LoaderCost(3, 64, 9, 4096, None),
        End("exit", 7, 99),
    ]
    lines = [
        codec.encode_location(0, SourceLocation("train.py:3 main")),
        codec.encode_location(1, SourceLocation("lib.py:9 f", "library")),
        codec.encode_samples(1, {0: 2}), codec.encode_samples(2, {0: 1, 1: 4}), '["q",2,0]\n',
        codec.encode_note("h2d", "no such hook"), '["z","from a later minor version"]\n',
    ]  # fmt: skip
    rows = [step(0), step(1, data_ms=None, other_ms=2), step(2, split=(0.5, 0.25))]
    write_rank(tmp_path, header(), rows, records=records, lines=lines)
    manifest().write(tmp_path)
    run = load_run(tmp_path)
    (rank,) = run.ranks
    assert run.name == "train"
    assert rank.steps.rows() == rows
    assert rank.aggregates == records[:1]
    assert rank.step_count == 13
    assert [rank.context[name].tolist() for name in ("time_ns", "cpu_percent", "process_rss_bytes")] == [
        [7],
        [1.5],
        [3],
    ]
    assert np.isnan(rank.context["gpu_percent"]).all()
    assert rank.windows == records[2:3]
    assert rank.overhead == looking
    assert rank.loader_costs == [LoaderCost(3, 64, 9, 4096, None)]
    assert (rank.end, rank.status, rank.complete) == (records[-1], "exit", True)
    line = SourceLocation("train.py:3 main")
    assert rank.samples == [(1, line, 2), (2, line, 1), (2, SourceLocation("lib.py:9 f", "library"), 4)]
    assert [n.message for n in rank.notes] == ["no such hook", "1 damaged line left out"]


def test_not_measured_is_not_zero() -> None:
    table = StepTable.from_rows([step(0, data_ms=None), step(1, data_ms=0)])
    assert table["data_ns"].tolist() == [MISSING, 0]


def test_a_file_torn_in_its_header_is_left_out_and_said(tmp_path: Path) -> None:
    path = ddp_rank(tmp_path)
    content = path.read_bytes()
    manifest().write(tmp_path)
    for size in (0, 1, content.index(b"\n")):
        path.write_bytes(content[:size])
        run = load_run(tmp_path)
        assert not run.ranks
        assert [n.source for n in run.notes] == ["attempt-0/rank-0.jsonl"]


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff\xfe garbage\n",
        b'["e"]\n',
        b'["c","7",1.0,null,null,null,null,null]\n',
        b'["k",1,1e999,1,1]\n',
        b'["g",7,[["0","allreduce",99999999999999999999,2]]]\n',
    ],
    ids=["bytes", "end", "type", "infinite", "huge"],
)
def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path, damage: bytes) -> None:
    path = ddp_rank(tmp_path)
    path.write_bytes(path.read_bytes() + damage)
    rank = load_run(tmp_path).ranks[0]
    assert rank.steps["step"].tolist() == list(range(6))
    assert [n.message for n in rank.notes] == ["1 damaged line left out"]
    assert len(rank.collectives) == 12


def blocks_of(path: Path, steps_each: int = 1) -> list[bytes]:
    """The blocks of a rank's file of steps, written again with so many steps in each."""
    made = [ddp_step(0, n) for n in range(6)]
    buffer, found = StepBuffer(), []
    for begin in range(0, len(made), steps_each):
        for row, times in made[begin : begin + steps_each]:
            buffer.keep(row, times)
        found.append(buffer.take())
    path.with_suffix(".steps").write_bytes(b"".join(found))
    return found


def test_a_damaged_block_takes_only_its_own_steps(tmp_path: Path) -> None:
    path = ddp_rank(tmp_path)
    blocks = blocks_of(path)
    steps = path.with_suffix(".steps")
    for at in range(len(blocks[3])):
        damaged = bytearray(blocks[3])
        damaged[at] ^= 0x10
        steps.write_bytes(b"".join([*blocks[:3], damaged, *blocks[4:]]))
        rank = load_run(tmp_path).ranks[0]
        assert rank.steps["step"].tolist() == [0, 1, 2, 4, 5]
        assert rank.collectives.seq.tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
        assert rank.untold is not None
        assert not rank.untold.any()
        assert [(n.source, n.message) for n in rank.notes] == [("attempt-0/rank-0.steps", "1 damaged part left out")]


@pytest.mark.parametrize("is_complete", [True, False])
def test_damage_in_the_last_block_is_said_of_a_rank_that_ended(tmp_path: Path, is_complete: bool) -> None:
    path = ddp_rank(tmp_path)
    blocks = blocks_of(path)
    damaged = bytearray(blocks[-1])
    damaged[-3] ^= 1
    path.with_suffix(".steps").write_bytes(b"".join([*blocks[:-1], damaged]))
    if not is_complete:
        path.write_text(path.read_text().replace('["e","ok"', '["z","ok"'))
    rank = load_run(tmp_path).ranks[0]
    assert rank.steps["step"].tolist() == list(range(5))
    assert [n.message for n in rank.notes] == ["1 damaged part left out"] * is_complete


def test_a_step_whose_signature_is_lost_is_not_told_apart(tmp_path: Path) -> None:
    rows = [with_collectives(step(0), (0,), signature=5), with_collectives(step(1), (2,))]
    write_rank(tmp_path, header(0, 2), rows, SHAPES, [CollectiveTimes(1, 2, 1, 1)] * 4)
    rank = load_run(tmp_path).ranks[0]
    assert rank.untold is not None
    assert rank.untold.tolist() == [True, False]
    assert rank.collectives.row.tolist() == [1, 1]
    assert rank.collectives.seq.tolist() == [2, 3]


def test_nodes_are_numbered_by_their_lowest_rank_and_restarts_keep_them(tmp_path: Path) -> None:
    for attempt, nodes in enumerate(("bbaa", "ab")):
        for rank, node in enumerate(nodes):
            write_rank(tmp_path, header(rank, 4, attempt, node), [step(0)])
    run = load_run(tmp_path)
    assert [(r.attempt, r.rank, r.node) for r in run.ranks] == [
        (0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 1), (1, 0, 1), (1, 1, 0),
    ]  # fmt: skip


def test_ranks_are_ordered_as_numbers(tmp_path: Path) -> None:
    for rank in (10, 9, 2):
        write_rank(tmp_path, header(rank, 11), [step(0)])
    assert [r.rank for r in load_run(tmp_path).ranks] == [2, 9, 10]


def test_a_run_without_manifest_is_readable(tmp_path: Path) -> None:
    write_rank(tmp_path / "job", header(), [step(0)])
    run = load_run(tmp_path / "job")
    assert run.manifest is None
    assert run.name == "job"
    assert run.origin_unix_ns == header().origin_unix_ns


def test_a_damaged_manifest_is_said(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(0)])
    (tmp_path / "manifest.json").write_text('{"schema": 1, "mod')
    run = load_run(tmp_path)
    assert len(run.ranks) == 1
    assert [n.source for n in run.notes] == ["manifest.json"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path, header(rank, 3), [step(n) for n in range(rank + 1)])
    calls: list[tuple[int, int]] = []
    load_run(tmp_path, lambda done, total: calls.append((done, total)))
    assert len(calls) == 3
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0


def test_a_newer_schema_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = write_rank(tmp_path, header(), [step(0)])
    path.write_text(path.read_text().replace('"schema":3', '"schema":99'))
    with pytest.raises(UserError, match=r"newer ddlprof \(schema 99\).*upgrade"):
        load_run(tmp_path)
    path.unlink()
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match=r"newer ddlprof \(schema 99\).*upgrade"):
        load_run(tmp_path)


def test_what_is_no_run_is_one_line_that_names_the_closest_or_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^nowhere: no such run directory; make one with: ddlprof run SCRIPT$"):
        load_run("nowhere")
    for number, name in enumerate(("train-20260101-101500", "finetune-20260102-090000")):
        run = simple_run(tmp_path / "ddlprof-runs" / name, steps=1)
        replace(manifest(), job_id=name).write(run)
        os.utime(run, (number, number))
    with pytest.raises(UserError, match="did you mean ddlprof-runs/train-20260101-101500"):
        load_run("ddlprof-runs/train-20260101-101501")
    with pytest.raises(UserError, match="the latest run is ddlprof-runs/finetune-20260102-090000"):
        load_run("zzz")
    with pytest.raises(
        UserError, match=r"^ddlprof-runs/finetune\S+ and ddlprof-runs/train\S+ are of two jobs: name .* one$"
    ):
        load_run("ddlprof-runs")
    with pytest.raises(UserError, match=r"not a run directory .*the latest run is ddlprof-runs/finetune"):
        load_run(".")
    Path("file").write_text("")
    with pytest.raises(UserError, match="is a file, not a run directory"):
        load_run("file")
    monkeypatch.setattr("ddlprof.store.folder.os.access", lambda path, mode: False)  # as of another user's folder
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        load_run(".")


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "attempt-0" / "rank-0.jsonl").mkdir(parents=True)
    with pytest.raises(UserError, match=r"rank-0.jsonl: unreadable .is a directory"):
        load_run(tmp_path)
