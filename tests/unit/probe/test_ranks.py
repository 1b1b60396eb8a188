"""The processes between which collectives are measured: what is said where they fail."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddlprof.probe import ranks
from ddlprof.probe.ranks import RanksFailed, launched


def started(log: Path, *codes: str) -> list[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        return [subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file) for code in codes]


def test_one_that_fails_ends_the_others_and_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = started(log, "import time; time.sleep(600)", "raise ValueError('no such\\tbackend')")
    begin = time.monotonic()
    with pytest.raises(RanksFailed, match=r"^a process failed: ValueError: no such backend$"):
        ranks._wait(processes, 300, log)
    assert time.monotonic() - begin < 200
    assert all(process.returncode is not None for process in processes)


def test_waiting_has_an_end(tmp_path: Path) -> None:
    processes = started(tmp_path / "log", "import time; time.sleep(600)")
    with pytest.raises(RanksFailed, match="did not finish within 0 s"):
        ranks._wait(processes, 0.2, tmp_path / "log")
    assert processes[0].returncode is not None


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
