"""What no run can have: numbers that cannot be, sums too large for a column, more of something than there is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.model.codec import COLUMNS
from ddlprof.model.records import Aggregate, CollectiveShape, CollectiveTimes
from ddlprof.store import lines as module
from ddlprof.store import load_run
from ddlprof.store.lines import MAX_GROUPS
from ddlprof.store.rankfile import LARGEST_SUM
from tests.golden.runs import header, manifest, step, with_collectives, write_rank

BAD_NUMBERS = ["-1", "1.5", "1e3", "true", '"7"', "[]", "{}", "1" * 400, str(2**63), "NaN", "-Infinity"]


def changed_line(directory: Path, tag: str, name: str, value: str) -> Path:
    """A run in which one value of a line is another text; what the value was does not matter."""
    path = write_rank(directory, header(), [step(n) for n in range(3)])
    values = {
        "d": "3,64,9,4096,1", "w": "50,2,100,80,10,5", "b": '2,1024,77,"x"',
        "k": "1,2,3,4", "c": "7,1.5,1,1,1,1,1", "g": '0,[["0","x",1,2,3]]', "l": '0,"a","b"', "n": '"a","b"',
        "q": "1,0,4", "e": '"ok",0,9', "t": "1,0,9",
    }  # fmt: skip
    texts = [json.dumps(field) for field in json.loads(f"[{values[tag]}]")]
    texts[COLUMNS[tag].index(name)] = value
    new = f'["{tag}",' + ",".join(texts) + "]"
    path.write_text(path.read_text() + new + "\n")
    return path


@pytest.mark.parametrize(
    ("tag", "name"),
    [("d", "cpu_ns"), ("w", "window_ns"), ("b", "duration_ns"), ("k", "hook_ns"), ("g", "number"), ("l", "number")],
)
@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_a_value_of_another_type_is_a_damaged_line(tmp_path: Path, tag: str, name: str, value: str) -> None:
    changed_line(tmp_path, tag, name, value)
    (rank,) = load_run(tmp_path).ranks
    if value == "1e3" or (value == "1.5" and tag == "k"):  # counters are no whole numbers
        assert not rank.notes
        return
    assert [note.message for note in rank.notes] == ["1 damaged line left out"]
    assert len(rank.steps) == 3


@pytest.mark.parametrize(("tag", "name"), [("l", "text"), ("n", "message"), ("e", "status"), ("b", "op")])
@pytest.mark.parametrize("value", ["3", "true", "[]", '"\\ud800"', '"' + "x" * 200_000 + '"'])
def test_a_text_that_is_none_is_a_damaged_line(tmp_path: Path, tag: str, name: str, value: str) -> None:
    changed_line(tmp_path, tag, name, value)
    (rank,) = load_run(tmp_path).ranks
    assert [note.message for note in rank.notes] == ["1 damaged line left out"]


@pytest.mark.parametrize("value", ["many", True, -3, [4]])
def test_facts_of_the_machine_that_reports_use_are_checked(tmp_path: Path, value: Any) -> None:
    write_rank(tmp_path, header(), [step(0)])
    replace(manifest(), host={"available_cores": value}).write(tmp_path)
    (note,) = load_run(tmp_path).notes
    assert "host.available_cores" in note.message


def test_sums_that_cannot_be_added_up_are_left_out(tmp_path: Path) -> None:
    half = Aggregate(6, 10, LARGEST_SUM // 2, LARGEST_SUM // 2, None, None, None, 0, 0, 0, 10, None)
    write_rank(tmp_path, header(), [step(0)], records=[half, half, half])
    (rank,) = load_run(tmp_path).ranks
    assert rank.aggregates == [half]
    assert [note.message for note in rank.notes] == ["2 steps with impossible values left out"]


def test_behind_very_many_damaged_lines_nothing_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DAMAGED_LINES", 10)
    write_rank(tmp_path, header(), [step(0)], lines=["\n"] * 50 + ['["n","a","b"]\n'])
    (rank,) = load_run(tmp_path).ranks
    assert [note.message for note in rank.notes] == ["51 damaged lines left out"]
    assert len(rank.steps) == 1


def test_more_groups_than_a_rank_can_have(tmp_path: Path) -> None:
    shapes = [CollectiveShape(str(n), "allreduce", 8, 2) for n in range(MAX_GROUPS + 1)]
    rows = [with_collectives(step(0), tuple(range(len(shapes))))]
    write_rank(tmp_path, header(0, 2), rows, shapes, [CollectiveTimes(1, 2, 1, 1)] * len(shapes))
    (rank,) = load_run(tmp_path).ranks
    assert (len(rank.steps), len(rank.collectives)) == (1, 0)
    assert [note.message for note in rank.notes] == ["1 damaged line left out"]
