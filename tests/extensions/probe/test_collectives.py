"""The processes between which collectives are measured: what is said where they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.base.worker_processes import WorkerProcesses
from ddlprof.extensions.probe.collectives import RanksFailed, launched, wait_for


def test_what_is_said_of_processes_that_fail(tmp_path: Path) -> None:
    (tmp_path / "failing_rank.py").write_text("raise ValueError('no such\\tbackend')")
    environment = {"PYTHONPATH": str(tmp_path)}
    workers = WorkerProcesses("failing_rank", [[]], environment, tmp_path / "log")
    with workers, pytest.raises(RanksFailed, match=r"^a process failed: ValueError: no such backend$"):
        wait_for(workers, 300)


def test_what_is_said_of_processes_that_take_too_long(tmp_path: Path) -> None:
    (tmp_path / "slow_rank.py").write_text("import time; time.sleep(600)")
    workers = WorkerProcesses("slow_rank", [[]], {"PYTHONPATH": str(tmp_path)}, tmp_path / "log")
    with workers, pytest.raises(RanksFailed, match="did not finish within 0 s"):
        wait_for(workers, 0.2)


@pytest.mark.parametrize(
    ("environment", "is_launched"),
    [({}, False), ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, False),
     ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, True), ({"WORLD_SIZE": "2"}, False)],
)  # fmt: skip
def test_torchrun_is_recognised(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_launched: bool
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched() is is_launched
