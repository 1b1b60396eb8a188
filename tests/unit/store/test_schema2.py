"""Runs that ddlprof wrote until November 2026 are read as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlprof.model.records import Aggregate, End
from ddlprof.store import RankData, folder, load_run
from ddlprof.store.rankfile import LARGEST_SUM
from tests.golden.runs import SHAPES, ddp_step, header, step, write_rank
from tests.unit.store.old_runs import write_old_rank

Write = Callable[..., Path]


def ddp_rank(directory: Path, write: Write = write_old_rank) -> Path:
    made = [ddp_step(0, n) for n in range(6)]
    times = [t for _, ts in made for t in ts]
    records = [Aggregate(6, 10, 100, 90, None, None, None, 0, 0, 10, 10, None), End("ok", 0, 10**9)]
    return write(directory, header(0, 2), [row for row, _ in made], SHAPES, times, records)


def contents(rank: RankData) -> dict[str, Any]:
    table = rank.collectives
    return {
        "steps": rank.steps.rows(), "sums": rank.aggregates, "end": rank.end, "notes": rank.notes,
        "collectives": [np.asarray(column).tolist() for column in (table.row, table.seq, table.shape, table.end_us)],
    }  # fmt: skip


def test_an_old_run_is_read_as_a_new_one(tmp_path: Path) -> None:
    ddp_rank(tmp_path / "old")
    ddp_rank(tmp_path / "new", write_rank)
    (old,), (new,) = load_run(tmp_path / "old").ranks, load_run(tmp_path / "new").ranks
    assert contents(old) == contents(new)
    assert replace(old.header, schema=3) == new.header


@pytest.mark.parametrize(
    "damage",
    [
        b'["s",3,\n',
        b'["s",3,1,2,"x",4,5,6,7,8,9,10,11,12,-1]\n',
        b'["s",3,300000000,10000001,8000000,1000000,null,null,0,0,1000000,1,32,0,-1]\n',  # does not add up
        b'["s",3,1],["s",3,2]\n',
        b"\x00\xff\xfe garbage\n",
        b'["e"]\n',
        b'["c","7",1.0,null,null,null,null,null]\n',
        b'["g",7,[["0","allreduce",99999999999999999999,2]]]\n',
    ],
    ids=["cut", "text", "sum", "two", "bytes", "end", "type", "huge"],
)
def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path, damage: bytes) -> None:
    path = ddp_rank(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[5] = damage  # header, signature, then the steps: this is step 3
    path.write_bytes(b"".join(lines))
    rank = load_run(tmp_path).ranks[0]
    assert rank.steps["step"].tolist() == [0, 1, 2, 4, 5]
    assert rank.notes[0].message == "1 damaged line left out"
    assert not len(rank.collectives)  # nobody knows whose times follow in the binary file
    assert rank.untold is not None
    assert rank.untold.all()


def test_of_a_file_of_collectives_that_is_too_large_the_beginning_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ddp_rank(tmp_path)
    monkeypatch.setattr(folder, "MAX_FILE_BYTES", path.stat().st_size)
    with path.with_suffix(".collectives").open("ab") as file:
        file.write(bytes(path.stat().st_size))
    rank = load_run(tmp_path).ranks[0]
    assert (len(rank.steps), len(rank.collectives)) == (6, 12)


def test_sums_that_cannot_be_added_up_are_left_out(tmp_path: Path) -> None:
    half = Aggregate(6, 10, LARGEST_SUM // 2, LARGEST_SUM // 2, None, None, None, 0, 0, 0, 10, None)
    write_old_rank(tmp_path, header(), [step(0)], records=[half, half, half])
    (rank,) = load_run(tmp_path).ranks
    assert rank.aggregates == [half]
    assert rank.notes[0].message == "2 damaged lines left out"
