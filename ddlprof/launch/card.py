"""Prints the card of a finished run, in a process of its own: the report needs packages that a training must not."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep  # as they are before the script runs

import ddlprof

_STDERR = 2
_COMMAND = str(Path(ddlprof.__file__).with_name("__main__.py"))


def await_ranks(run_directory: Path, ranks: int, patience_s: float = 3.0) -> None:
    """Waits a little until that many ranks of the last attempt have written how they ended."""
    deadline = monotonic() + patience_s
    while _ended(run_directory) < ranks and monotonic() < deadline:
        sleep(0.05)


def _ended(run_directory: Path) -> int:
    attempts = sorted(run_directory.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    files = attempts[-1].glob("rank-*.jsonl") if attempts else ()
    return sum(b'\n["e",' in _tail(path) for path in files)


def _tail(path: Path, size: int = 200) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read()


def print_card(run_directory: Path, working_directory: str) -> None:
    """Runs `ddlprof report` with its output on stderr; no card rather than an error where that fails.

    `working_directory` is where the user started the run: the paths on the card are relative to it.
    """
    shown = os.path.relpath(run_directory, working_directory)
    if shown.startswith(os.pardir):
        shown = str(run_directory)
    if sys.__stderr__ is None:  # closed when we began: the number is a file's of the script
        return
    with suppress(Exception):
        sys.stderr.flush()
        subprocess.run(
            [sys.executable, _COMMAND, "report", shown],
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            cwd=working_directory,
            check=False,
        )
