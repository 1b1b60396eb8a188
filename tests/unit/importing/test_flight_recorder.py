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
from ddlprof.model.hang import MAX_HANG_BYTES
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
        (b"", "no whole pickle"),
        (pickle.dumps({"entries": []})[:-5], "no whole pickle"),
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


def shared(times: int) -> Any:
    """Lists in lists, small in the file: in memory there are 2 to the power of `times`."""
    value: Any = ["x"]
    for _ in range(times):
        value = [value, value]
    return value


def groups(number: int) -> list[dict[str, Any]]:
    return [{**entry(1, "started"), "pg_name": str(index)} for index in range(number)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"entries": [], "rank": 10**12}, "rank: a whole number from 0 to 99999 is expected"),
        ({"entries": [], "rank": -1}, "rank: a whole number from 0 to 99999 is expected"),
        ({"entries": [{**entry(1, "started"), "time_created_ns": 2**63 - 1}]}, "entries[0].time_created_ns: a whole"),
        ({"entries": [], "pg_config": {"0": {"ranks": [10**6]}}}, "pg_config.'0'.ranks"),
        ({"entries": [], "pg_config": [1]}, "pg_config: an object is expected, not a list"),
        ({"entries": [3]}, "entries[0]: an object is expected, not 3"),
        (
            {"entries": [entry(1, "started"), {"collective_seq_id": "x"}]},
            "entries[1].collective_seq_id: a whole number",
        ),
        ({"entries": [{"input_sizes": [[-1]]}]}, "entries[0].input_sizes[0][0]: a whole number of 0 or more"),
        ({"entries": [{"input_sizes": {}}]}, "entries[0].input_sizes: a list is expected, not an object"),
        ({"entries": [{"process_group": 5}]}, "entries[0].process_group"),
        ({"entries": [{"profiling_name": 7}]}, "entries[0].profiling_name: a text is expected, not 7"),
        ({"entries": [{"is_p2p": "x"}]}, "entries[0].is_p2p: true or false is expected"),
        ({"entries": [{"frames": [{"line": "x"}]}]}, "frames[0].line: a whole number"),
        ({"entries": groups(257)}, "collectives of 257 process groups; at most 256 are read"),
    ],
)
@pytest.mark.parametrize("form", [0, 1], ids=["pickle", "json"])
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, content: Any, message: str, form: int) -> None:
    name, make = FORMS[form]
    path = tmp_path / name.format(0)
    path.write_bytes(make(content))
    with pytest.raises(UserError) as raised:
        read_dumps([path])
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"entries": [{**entry(1, "started"), "frames": shared(40)}]}), "more than 20,000,000 values"),
        (pickle.dumps({"entries": [], "rank": 10**4999}), "at most 9 are read"),
        (b'{"entries": [], "rank": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b'{"entries": [' + b"[]," * 6_000_000 + b"[]]}", "more than 6,000,000 values"),
        (b'{"entries": ' + b"[" * 100_000, "more than 32 deep"),
    ],
)
def test_what_is_larger_in_memory_than_on_the_disk_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_dumps([path])


def test_groups_with_more_members_than_are_read_again_are_refused(tmp_path: Path) -> None:
    content = {"entries": groups(4), "pg_config": {str(n): {"ranks": list(range(99_999))} for n in range(4)}}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match="more than 300,000 ranks together"):
        read_dumps([path])


@pytest.mark.slow
def test_the_largest_dump_is_read_again_from_the_run(tmp_path: Path) -> None:
    many = [{**each, "collective_seq_id": seq} for each in groups(256) for seq in range(64)]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": many, "pg_config": {"0": {"ranks": list(range(99_999))}}}))
    import_dumps([path], tmp_path / "run")
    assert (tmp_path / "run/attempt-0/rank-0.hang.json").stat().st_size < MAX_HANG_BYTES
    assert find_hang(read_dumps([path]), {}, 99_999) is not None
    assert hang_of(load_run(tmp_path / "run")) is not None


def test_what_a_dump_does_not_tell_is_not_needed(tmp_path: Path) -> None:
    bare = {"pg_name": "0", "seq_id": 3, "frames": None, "input_sizes": None, "time_discovered_started_ns": "?"}
    config = {"0": {"name": "0", "ranks": "[0..7]"}}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [bare], "pg_config": config}))
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"entries": []}))
    states = read_dumps(dumps_in([tmp_path]))
    assert [(state.rank, [group.members for group in state.groups]) for state in states] == [(0, [[0, 1]]), (1, [])]
