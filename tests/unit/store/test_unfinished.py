"""A rank whose helper thread was left behind says so in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.model.records import End
from ddlprof.model.unfinished import Unfinished
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

SAID = Unfinished("exception", 1, 5, "stuck")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in (0, 1):
        write_rank(tmp_path, header(rank, 2), [step(n) for n in range(5)], records=[End("ok", 0, 9)][:rank])
    return tmp_path


def test_a_rank_that_told_its_end_itself_missed_nothing(run: Path) -> None:
    SAID.write(run / "attempt-0", 1)
    data = load_run(run)
    assert data.ranks[1].end == End("ok", 0, 9)
    assert data.ranks[1].notes == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": 1}', "\x00" * 50])
def test_a_damaged_file_is_noted(run: Path, text: str) -> None:
    (run / "attempt-0" / "rank-0.unfinished.json").write_text(text)
    data = load_run(run)
    assert not data.ranks[0].complete
    assert [note.source for note in data.notes] == ["attempt-0/rank-0.unfinished.json"]


def test_it_is_found_in_a_folder_of_parts_and_not_in_another_attempt(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts" / "a"
    write_rank(folder, header(), [step(n) for n in range(5)])
    SAID.write(folder / "attempt-0", 0)
    assert load_run(folder.parent).ranks[0].end == SAID.end
    (folder / "attempt-0" / "rank-0.unfinished.json").rename(folder / "rank-0.unfinished.json")
    assert load_run(folder.parent).ranks[0].end is None
