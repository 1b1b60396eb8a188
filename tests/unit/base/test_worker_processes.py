"""Groups of worker processes: none outlives its group, whatever ends it, and the error of one that fails is kept."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from ddlprof.base.worker_processes import WorkerFailed, WorkerProcesses

WORKER = """
import sys, time

if sys.argv[1] == "echo":
    print("ready", flush=True)
    print(sys.stdin.readline().strip() * 2, flush=True)
elif sys.argv[1] == "sleep":
    time.sleep(600)
elif sys.argv[1] == "fail":
    print("first")
    raise ValueError("no such backend")
"""


def workers(folder: Path, *arguments: str, log: Path | None = None) -> WorkerProcesses:
    (folder / "a_worker.py").write_text(WORKER)
    return WorkerProcesses("a_worker", [[each] for each in arguments], {"PYTHONPATH": str(folder)}, log)


def are_ended(group: WorkerProcesses) -> bool:
    return all(process.returncode is not None for process in group.processes)


def test_one_that_fails_ends_the_others_and_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    begin = time.monotonic()
    said = r"^ValueError: no such backend$"
    with pytest.raises(WorkerFailed, match=said), workers(tmp_path, "sleep", "fail", log=tmp_path / "log") as group:
        group.wait(300)
    assert time.monotonic() - begin < 200
    assert are_ended(group)


def test_waiting_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError), workers(tmp_path, "sleep", log=tmp_path / "log") as group:
        group.wait(0.2)
    assert are_ended(group)


def test_all_that_end_well_are_waited_for(tmp_path: Path) -> None:
    with workers(tmp_path, "nothing", "nothing", log=tmp_path / "log") as group:
        group.wait(300)
        assert are_ended(group)
        assert group.last_line() == ""


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), workers(tmp_path, "sleep", "sleep") as group:
        raise KeyboardInterrupt
    assert are_ended(group)
    assert len(group.processes) == 2


def test_those_already_started_end_where_one_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, start, calls = workers(tmp_path, "sleep", "sleep"), subprocess.Popen, []

    def second_fails(*args: object, **options: object) -> object:
        calls.append(args)
        if len(calls) > 1:
            raise OSError("no more processes")
        return start(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        group.__enter__()
    assert len(group.processes) == 1
    assert are_ended(group)


def test_lines_go_to_each_and_come_from_each(tmp_path: Path) -> None:
    with workers(tmp_path, "echo", "echo") as group:
        assert group.read_lines() == [b"ready\n"] * 2
        group.write_line(b"go")
        assert group.read_lines() == [b"gogo\n"] * 2
        with pytest.raises(WorkerFailed):
            group.read_lines()
