"""Dumps of NCCL's Flight Recorder: both forms, what they tell, and pickles that would run code."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis import hang_facts
from ddlprof.analysis.hangs import find_hang, hang_of
from ddlprof.base.errors import UserError
from ddlprof.importing import dumps_in, import_dumps
from ddlprof.importing.flight_recorder import read_dumps
from ddlprof.store import load_run

FORMS: list[tuple[str, Callable[[Any], bytes]]] = [
    ("nccl_trace_rank_{}", pickle.dumps),
    ("nccl_trace_rank_{}.json", lambda value: json.dumps(value).encode()),
]


def entry(seq: int, state: str, count: int = 1000) -> dict[str, Any]:
    return {
        "pg_name": ("0", "default_pg"), "collective_seq_id": seq, "is_p2p": False, "state": state,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + seq * 10**9, "input_sizes": [[count]],
        "input_dtypes": ["BFloat16"], "output_sizes": [[count]], "output_dtypes": ["BFloat16"],
        "frames": [
            {"name": "all_reduce", "filename": "/opt/site-packages/torch/distributed/c10d.py", "line": 1},
            {"name": "train", "filename": "/home/me/train.py", "line": 40 + seq},
        ],
    }  # fmt: skip


def dump(entries: list[dict[str, Any]]) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.9", "entries": entries, "pg_config": config}


def write(folder: Path, entries: dict[int, list[dict[str, Any]]], form: int = 0) -> list[Path]:
    name, make = FORMS[form]
    for rank, of in entries.items():
        (folder / name.format(rank)).write_bytes(make(dump(of)))
    return dumps_in([folder])


def history(last: int, state: str = "started", count: int = 1000) -> list[dict[str, Any]]:
    return [*[entry(seq, "completed") for seq in range(1, last)], entry(last, state, count)]


@pytest.mark.parametrize("form", [0, 1], ids=["pickle", "json"])
def test_a_rank_that_is_missing_is_found_in_both_forms(tmp_path: Path, form: int) -> None:
    dumps = write(tmp_path, {0: history(6), 1: history(5, "completed"), 2: history(6)}, form)
    assert len(import_dumps(dumps, tmp_path / "run")) == 3
    found = hang_of(load_run(tmp_path / "run"))
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (hang_facts.MISSING, [1], [0, 2])
    assert found.place == "/home/me/train.py:45 train"
    assert found.collective is not None
    assert (found.collective.seq, found.collective.op, found.collective.bytes) == (6, "allreduce", 2000)


def test_another_size(tmp_path: Path) -> None:
    states = read_dumps(write(tmp_path, {0: history(6), 1: history(6, count=7), 2: history(6)}))
    found = find_hang(states, {}, 3)
    assert found is not None
    assert (found.kind, found.ranks, found.detail) == (hang_facts.SHAPE, [1], "allreduce of 14 bytes")


def test_a_rank_without_a_dump_is_the_one_that_is_gone(tmp_path: Path) -> None:
    states = read_dumps(write(tmp_path, {0: history(6), 2: history(6)}))
    found = find_hang(states, {}, 3)
    assert found is not None
    assert (found.kind, found.ranks) == (hang_facts.SILENT, [1])


class Evil:
    """Would run a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Evil(f"touch {tmp_path}/ran")]}))
    with pytest.raises(UserError, match="only plain values are read"):
        read_dumps([path])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a dump"),
        (pickle.dumps({"entries": []})[:-5], "cannot be read as a dump"),
        (pickle.dumps([1]), "no dump of the Flight Recorder"),
        (b'{"entries": 3}', "no dump of the Flight Recorder"),
        (b'{"entries": [', "not JSON"),
    ],
)
def test_what_is_no_dump_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        read_dumps([path])
    assert "\n" not in str(raised.value)


def test_hostile_values_are_passed_over(tmp_path: Path) -> None:
    strange = {"collective_seq_id": "x", "input_sizes": [[-1, "a"], 3], "frames": 7, "profiling_name": None, "state": 5}
    states = read_dumps(write(tmp_path, {0: [strange, {"pg_name": [], "input_sizes": {}}], 1: []}))
    assert [state.rank for state in states] == [0, 1]
