"""A rank that ended on a full disk says how it ended by the name of an empty file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.model.records import End
from ddlprof.model.unwritten_end import unwritten_end_name, unwritten_end_of
from ddlprof.store import load_run
from tests.golden.runs import SHAPES, ddp_step, header, manifest, write_rank

END = End("exit", 7, 5 * 10**9)


def without_end(folder: Path, rank: int = 0) -> Path:
    made = [ddp_step(rank, number) for number in range(6)]
    times = [each for _, per_step in made for each in per_step]
    return write_rank(folder, header(rank, 2), [row for row, _ in made], SHAPES, times, [])


def test_a_name_tells_how_a_rank_ended(tmp_path: Path) -> None:
    manifest(world_size=2).write(tmp_path)
    for rank in (0, 1):
        text = without_end(tmp_path, rank)
    (text.parent / unwritten_end_name(1, END)).touch()
    first, second = load_run(tmp_path).ranks
    assert (first.end, first.status) == (None, "torn")
    assert (second.end, second.complete) == (END, True)
    assert [note.message for note in second.notes] == [
        "the disk was full when this rank ended: its last steps are missing"
    ]
    assert not first.notes


@pytest.mark.parametrize("name", ["rank-0.jsonl", "rank-0.end-ok-0", "rank-0.end-ok-0-1-2", "rank-00.end-ok-0-1", "x"])
def test_other_names_tell_nothing(name: str) -> None:
    assert unwritten_end_of(name) is None
    assert unwritten_end_of(unwritten_end_name(12, END)) == (12, END)
