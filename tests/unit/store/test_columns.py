"""Readers go by the names of the columns: those of other versions, before and after, are read for what they have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlprof.model import blocks, codec
from ddlprof.model.codec import COLUMNS, KINDS
from ddlprof.model.records import (
    MISSING,
    Aggregate,
    Calibration,
    ClockReading,
    ContextRow,
    End,
    LoaderCost,
    Overhead,
    WindowRow,
)
from ddlprof.store import RankData, load_run
from tests.golden.runs import SHAPES, Record, ddp_step, header, manifest, write_rank

RECORDS: list[Record] = [
    Aggregate(6, 10, 100, 90, None, None, None, 0, 0, 10, 10, None),
    ContextRow(7, 1.5, None, 3, None, None, None),
    WindowRow(50, 2, 100, 80, 10, 5),
    Calibration(2, 1024, 77, "broadcast"),
    ClockReading(1, -5, 9),
    Overhead(1, 2, 3, 4),
    LoaderCost(3, 64, 9, 4096, None),
    End("exit", -9, 99),
]
LINES = ['["l",0,"train.py:3 main","sleep"]\n', '["q",2,0,4]\n', '["n","h2d","why"]\n']
Change = Callable[[dict[str, list[str]], list[list[Any]], dict[str, list[list[str]]]], None]
"""Changes the columns of a file, its lines, and the columns of its blocks."""


def written(directory: Path) -> Path:
    made = [ddp_step(0, n) for n in range(4)]
    times = [t for _, ts in made for t in ts]
    return write_rank(directory, header(0, 2), [row for row, _ in made], SHAPES, times, RECORDS, LINES)


def changed(directory: Path, change: Change) -> RankData:
    """The same file by another version."""
    path = written(directory)
    head, *lines = map(json.loads, path.read_text().splitlines())
    change(head["columns"], lines, head["blocks"])
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [head, *lines]))
    steps = path.with_suffix(".steps")
    found, _ = blocks.BlockStream(blocks.LAYOUTS).take(steps.read_bytes())
    steps.write_bytes(b"".join(with_layouts(block, head["blocks"]) for block in found))
    return load_run(directory).ranks[0]


def with_layouts(block: blocks.Block, layouts: dict[str, list[list[str]]]) -> bytes:
    """The block with other columns in its rows and times; new ones have the value 7."""

    def changed(data: memoryview, kind: str) -> bytes:
        old = np.frombuffer(data, dtype=[(name, f"<{letter}") for name, letter in blocks.LAYOUTS[kind]])
        new = np.full(len(old), 7, dtype=[(name, f"<{letter}") for name, letter in layouts[kind]])
        for name in set(old.dtype.names or ()) & set(new.dtype.names or ()):
            new[name] = old[name]
        return new.tobytes()

    rows = changed(block.whole[blocks.HEAD_BYTES : block.seqs_at], block.kind.decode())
    times = changed(block.whole[block.times_at :], blocks.TIMES)
    seqs = bytes(block.whole[block.seqs_at : block.times_at])
    return blocks.encode_block(block.kind, block.number, block.counts, rows + seqs + times)


def contents(rank: RankData) -> dict[str, Any]:
    """All that can be compared."""
    collectives = rank.collectives
    return {
        "steps": rank.steps.rows(), "aggregates": rank.aggregates, "windows": rank.windows, "end": rank.end,
        "calibration": rank.calibration, "clocks": rank.clock_readings, "overhead": rank.overhead, "notes": rank.notes,
        "costs": rank.loader_costs, "samples": rank.samples, "shapes": collectives.shapes,
        "seqs": collectives.seq.tolist(), "ready": collectives.ready_us.tolist(), "untold": rank.untold is None,
        "context": [rank.context[f.name].tolist()[0] for f in fields(ContextRow)[:2]],
    }  # fmt: skip


def test_the_columns_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    written(tmp_path / "today")
    expected = contents(load_run(tmp_path / "today").ranks[0])

    def change(columns: dict[str, list[str]], lines: list[list[Any]], layouts: dict[str, list[list[str]]]) -> None:
        for tag in KINDS:
            columns[tag].insert(1, "new")
        for line in lines:
            line.insert(2, 7)
        for place, (kind, layout) in enumerate(layouts.items()):
            layout.insert(place, ["new", "u2" if kind == "s" else "i8"])
        layouts["Z"] = [["newest", "u1"]]
        columns["z"] = ["newest"]
        lines.append(["z", {"what": "of a later version"}])

    assert contents(changed(tmp_path / "tomorrow", change)) == expected


def test_what_an_earlier_version_had_no_column_for_is_not_measured(tmp_path: Path) -> None:
    def change(columns: dict[str, list[str]], lines: list[list[Any]], layouts: dict[str, list[list[str]]]) -> None:
        for kind in "sS":
            layouts[kind] = [column for column in layouts[kind] if column[0] != "data_fetch_ns"]
        for tag, name in (("c", "cpu_percent"), ("w", "kernels"), ("b", "op")):
            place = columns[tag].index(name)
            del columns[tag][place]
            for line in lines:
                if line[0] == tag:
                    del line[place + 1]

    rank = changed(tmp_path, change)
    assert not [note for note in rank.notes if "damaged" in note.message]
    assert rank.steps["data_fetch_ns"].tolist() == [MISSING] * 4
    assert [row.data_fetch_ns for row in rank.steps.rows()] == [None] * 4
    assert rank.context["cpu_percent"].tolist() != rank.context["cpu_percent"].tolist()  # NaN
    assert rank.windows[0].kernels is None
    assert rank.calibration[0].op == "allreduce"
    assert len(rank.collectives) == 8


@pytest.mark.parametrize("damage", [{"c": 3}, [], {"c": ["a", "a"]}, {"c": ["x...", "y"]}, None])
def test_columns_that_cannot_be_are_said(tmp_path: Path, damage: Any) -> None:
    manifest(2).write(tmp_path)
    path = written(tmp_path)
    head, *lines = path.read_text().splitlines(keepends=True)
    columns = {**COLUMNS, **damage} if isinstance(damage, dict) else damage
    path.write_text("".join([json.dumps({**json.loads(head), "columns": columns}) + "\n", *lines]))
    run = load_run(tmp_path)
    assert not run.ranks
    assert [note.source for note in run.notes] == ["attempt-0/rank-0.jsonl"]
    assert "column" in run.notes[0].message


LAYOUTS = {kind: [list(column) for column in layout] for kind, layout in blocks.LAYOUTS.items()}


@pytest.mark.parametrize(
    "damage",
    [
        None, [], {**LAYOUTS, "s": 3}, {**LAYOUTS, "s": [["a", "u4"], ["a", "u4"]]}, {**LAYOUTS, "s": [["step", "f8"]]},
        {**LAYOUTS, "s": [["step", "u4"]]}, {**LAYOUTS, "times": [["end_us", "u4"]]}, {**LAYOUTS, "s": []},
        {kind: layout for kind, layout in LAYOUTS.items() if kind != "times"},
    ],
)  # fmt: skip
def test_columns_of_blocks_that_cannot_be_are_said(tmp_path: Path, damage: Any) -> None:
    manifest(2).write(tmp_path)
    path = written(tmp_path)
    head, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(head), "blocks": damage}) + "\n", *lines]))
    run = load_run(tmp_path)
    assert not sum(len(rank.steps) for rank in run.ranks)
    assert run.notes or run.ranks[0].notes


def test_a_line_of_our_own_is_read_as_it_was_written() -> None:
    for record in RECORDS:
        if not isinstance(record, Aggregate):  # which is in a block
            assert codec.decode(codec.encode(record))[1] == record
