"""Scripts that close every descriptor, as daemons do, and directories without room: the script's files stay its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.model.records import StepRow
from tests.records import records_in

Execute = Callable[..., subprocess.CompletedProcess[bytes]]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc and descriptors")

SCRIPT = """\
import os, resource, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

who, workers, method = sys.argv[1], int(sys.argv[2]), sys.argv[3]
mine = []


def close_all():
    os.closerange(3, 4096)
    for index in range(40):
        number = os.open(f"mine-{index}", os.O_RDWR | os.O_CREAT)
        os.write(number, b"mine")
        mine.append(number)


def close_ours(_=0):
    '''Those of a worker's that are of no use to torch.'''
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            link = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of the list itself, or of another thread
            continue
        if "ddlprof" in link or link.startswith("/proc/"):
            os.close(number)
            os.dup2(os.open(f"worker-{number}-{os.getpid()}", os.O_RDWR | os.O_CREAT), number)


class Data(Dataset):
    closed = False

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if who == "dataset" and not Data.closed:
            Data.closed = True
            close_ours()
        time.sleep(0.002)
        return torch.randn(8)


def main():
    torch.set_num_threads(1)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Data(), 4, num_workers=workers, multiprocessing_context=method if workers else None,
        persistent_workers=workers > 0, worker_init_fn=close_ours if who == "init" else None,
    )
    if who == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    for epoch in range(3):
        for number, x in enumerate(loader):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            time.sleep(0.01)
            if who == "main" and epoch == 0 and number == 8:
                close_all()
    for number in mine:
        assert os.lseek(number, 0, os.SEEK_CUR) == 4, "was read or written"
        assert os.pread(number, 99, 0) == b"mine", "was written to"
    for name in os.listdir():
        assert not name.startswith("worker-") or os.path.getsize(name) == 0, "was written to"
    print("trained")


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def run(ddlprof: Execute, tmp_path: Path) -> Callable[..., Any]:
    """Runs the script with its arguments; the lines of its rank."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def lines(*words: str, says: str = "") -> list[tuple[str, Any]]:
        done = ddlprof("run", "--out", "run", "train.py", *words)
        assert (done.returncode, done.stdout) == (0, b"trained\n"), done.stderr.decode()
        complaints = [line for line in done.stderr.decode().splitlines() if line.startswith("ddlprof: ")]
        assert len(complaints) == bool(says), complaints
        assert not says or says in complaints[0]
        return records_in(tmp_path / "run" / "attempt-0" / "rank-0.jsonl")

    return lines


def of(lines: list[tuple[str, Any]], tag: str) -> list[Any]:
    return [record for kind, record in lines if kind == tag]


def is_whole(lines: list[tuple[str, Any]]) -> bool:
    ends = [(end.status, end.exit_code) for end in of(lines, "e")]
    return [row.step for row in of(lines, "s")] == list(range(48)) and ends == [("ok", 0)]


def split(lines: list[tuple[str, Any]]) -> list[StepRow]:
    """The steps whose wait for data is split."""
    return [row for row in of(lines, "s") if row.data_ns and row.data_fetch_ns is not None]


def test_a_script_that_closes_every_descriptor(run: Callable[..., Any]) -> None:
    lines = run("main", "0", "none")
    assert is_whole(lines)
    assert not of(lines, "n")
    assert len(split(lines)) == 48


@pytest.mark.slow
@pytest.mark.parametrize(("who", "method"), [("init", "fork"), ("dataset", "spawn")])
def test_workers_that_close_our_descriptors(run: Callable[..., Any], who: str, method: str) -> None:
    lines = run(who, "1", method)
    assert is_whole(lines)
    assert not of(lines, "n")
    assert len(split(lines)) >= 24


@pytest.mark.slow
def test_files_that_may_not_grow(run: Callable[..., Any], tmp_path: Path) -> None:
    """Neither our files nor the workers' table: the training goes on, and one line says so."""
    lines = run("limit", "1", "fork", says="File too large while writing the run")
    assert not is_whole(lines)


@pytest.mark.slow
def test_a_full_temporary_directory(run: Callable[..., Any], small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = small_disk / "tmp"
    temporary.mkdir()
    (small_disk / "ballast").write_bytes(bytes(20 << 10))
    monkeypatch.setenv("TMPDIR", str(temporary))
    lines = run("", "1", "fork")
    assert is_whole(lines)
    assert not list(temporary.glob("ddlprof-*"))
    assert not split(lines)
    (note,) = of(lines, "n")
    assert note.source == "data"
    assert "not split" in note.message
    assert "No space left on device in the temporary directory" in note.message
