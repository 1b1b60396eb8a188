"""How long the card waits for the ranks, and that it comes in surroundings that the script has changed."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.launch import terminal
from ddlprof.model import codec
from ddlprof.model.records import End, RankHeader


@pytest.fixture
def rank(tmp_path: Path) -> Callable[..., None]:
    """Writes a rank's file."""

    def write(number: int, ended: bool, pid: int, host: str = socket.gethostname(), attempt: int = 0) -> None:
        header = RankHeader(number, 2, number, attempt, host, "", pid, "cpu", "host", 0, 0)
        text = codec.encode_header(header) + (codec.encode(End("ok", 0, 1)) if ended else "")
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{number}.jsonl").write_text(text)

    return write


@pytest.fixture
def waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], bool]:
    """Whether it would wait."""

    def wait(ranks: int = 1) -> bool:
        pauses: list[float] = []
        monkeypatch.setattr(terminal, "sleep", pauses.append)
        terminal.await_ranks(tmp_path, ranks, patience_s=0.01)
        return bool(pauses)

    return wait


def gone() -> int:
    """A process that is no more."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


@pytest.mark.skipif(os.name == "nt", reason="POSIX processes")
def test_it_waits_for_the_living(rank: Callable[..., None], waited: Callable[[int], bool]) -> None:
    assert waited(1)  # there is no file yet
    rank(0, True, os.getpid())
    assert not waited(1)
    assert waited(2)
    rank(1, False, os.getpid())
    assert waited(1)
    rank(1, False, gone())
    assert not waited(1)
    rank(1, False, gone(), host="another")  # nobody here can tell
    assert waited(1)
    rank(0, True, os.getpid(), attempt=1)  # earlier attempts are over
    assert not waited(1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    started: list[object] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_a_card(started: list[object], tmp_path: Path) -> None:
    terminal.print_card(tmp_path, str(tmp_path))
    assert len(started) == 1


@pytest.mark.parametrize("name", ["stderr", "__stderr__"])
def test_no_error_without_stderr(
    name: str, started: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a card: where stderr was closed from the start, its number may be a file of the script's."""
    monkeypatch.setattr(f"sys.{name}", None)
    terminal.print_card(tmp_path, str(tmp_path))
    assert not started


def test_ranks_that_never_end_are_not_waited_for_where_time_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 7.0)
    terminal.await_ranks(tmp_path, 2, patience_s=0.2)


def test_a_summary_without_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[list[str], object]] = []

    def run(command: list[str], stdout: object, **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append((command, stdout))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    terminal.save_summary(Path("run"))
    terminal.print_card(tmp_path / "run", str(tmp_path))
    assert [command[2:] for command, _ in started] == [
        [*terminal.CARD_WORDS, str(tmp_path / "run")],
        [*terminal.CARD_WORDS, "run"],
    ]
    assert [stdout for _, stdout in started] == [subprocess.DEVNULL, 2]


def test_a_card_whose_process_is_killed_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, -9))
    with pytest.raises(ChildProcessError, match="signal 9"):
        terminal.print_card(tmp_path, str(tmp_path))


def test_odd_things_in_the_run_directory(
    rank: Callable[..., None], waited: Callable[[int], bool], tmp_path: Path
) -> None:
    """A copy of an attempt beside it, attempts that no number names, and a rank's file that is a folder."""
    rank(0, False, os.getpid())
    for name in ("attempt-0.bak", "attempt-", "attempt-x", "attempt-9999999999"):
        (tmp_path / name).mkdir()
    assert waited(1)
    rank(0, True, os.getpid())
    (tmp_path / "attempt-0" / "rank-1.jsonl").mkdir()
    assert not waited(2)
