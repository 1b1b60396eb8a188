"""What a machine's kernel says of the other ranks on it, in a job of 1,024 ranks on 128 machines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddlprof.collect.hang.state import Peers
from tests.golden.runs import header

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")

WORLD, ON_EACH = 1024, 8
GONE = 2**22 + 1
"""More than the largest number of a process."""
DEAD = (3, 99, 500, 700, 1023)


def in_a_row(rank: int) -> int:
    return rank // ON_EACH


def write(folder: Path, node: Callable[[int], int]) -> None:
    for rank in range(WORLD):
        pid = GONE if rank in DEAD else os.getpid()
        head = replace(header(rank, WORLD), node_id=f"node{node(rank)}", pid=pid)
        (folder / f"rank-{rank}.jsonl").write_text(json.dumps(asdict(head)) + "\n")


def peers(rank: int, node: Callable[[int], int], beside: list[int] | None = None) -> Peers:
    own = SimpleNamespace(node_id=f"node{node(rank)}")
    return Peers(cast("Any", SimpleNamespace(rank=rank, world_size=WORLD, header=own, beside=beside)))


@pytest.mark.parametrize("dead", DEAD)
def test_a_dead_rank_is_seen_by_its_neighbour_at_the_first_look(tmp_path: Path, dead: int) -> None:
    write(tmp_path, in_a_row)
    beside = dead ^ 1
    assert peers(beside, in_a_row).cannot_run(tmp_path) == {str(dead): "gone"}
    assert peers(dead - 100 if dead > 100 else dead + 32, in_a_row).cannot_run(tmp_path) == {}


def test_without_calibration_all_are_read_in_time_and_once(tmp_path: Path) -> None:
    write(tmp_path, lambda rank: 0)
    one = peers(512, lambda rank: 0)
    first = one.cannot_run(tmp_path)
    assert first == {"500": "gone"}, "the nearest come first"
    found = [one.cannot_run(tmp_path) for _ in range(WORLD // 64)][-1]
    assert found == {str(rank): "gone" for rank in DEAD}
    for file in tmp_path.iterdir():
        file.unlink()
    assert one.cannot_run(tmp_path) == found, "no file is read again"


def test_a_file_that_is_not_there_yet_is_looked_for_again(tmp_path: Path) -> None:
    one = peers(2, in_a_row)
    assert one.cannot_run(tmp_path) == {}
    write(tmp_path, in_a_row)
    (tmp_path / "rank-1.jsonl").write_text("{")
    assert [one.cannot_run(tmp_path) for _ in range(WORLD // 64)][-1] == {"3": "gone"}
